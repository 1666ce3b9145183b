#include "health/report/node_health.h"

#include <algorithm>
#include <tuple>

#include "base/text.h"

namespace gpulet::health {
namespace {

std::string instance_suffix(const Scope& scope) {
  std::string text = " instance " + std::to_string(scope.gpu_instance);
  if (scope.compute_instance != kNoInstance) text += "/" + std::to_string(scope.compute_instance);
  return text;
}

}  // namespace

const DeviceView* HealthView::find(const Scope& scope) const {
  const auto found = std::ranges::find(devices, scope, &DeviceView::scope);
  return found == devices.end() ? nullptr : &*found;
}

std::string waiting_text(const DeviceView& device) {
  if (device.preflight != "waiting") return {};
  return "waits for its preflight" + (device.preflight_detail.empty() ? "" : ", " + device.preflight_detail);
}

HealthView build_health_view(const HealthStateMachine& machine, const inventory::Snapshot& snapshot,
                             const ClockPair& at) {
  HealthView view{at, {}};
  for (auto& [scope, status] : machine.device_statuses()) {
    DeviceView device;
    device.scope = scope;
    device.status = std::move(status);
    if (scope.is_whole_gpu()) {
      device.uuid = scope.gpu;
      device.unavailable_sources = machine.unavailable_sources(scope.gpu);
      device.in_fabric = machine.is_in_fabric(scope.gpu);
      device.links = machine.link_counts(scope.gpu);
    }
    if (const auto* gpu = snapshot.find(scope.gpu)) {
      device.gpu_index = gpu->index;
      device.slot = gpu->pci.sysfs_text();
      device.excluded = gpu->excluded;
      if (scope.is_whole_gpu()) {
        device.model = gpu->model;
        device.mig_pending = gpu->mig_pending;
      }
      const auto mig = std::ranges::find_if(gpu->mig_devices, [&](const auto& other) {
        return other.gpu_instance == scope.gpu_instance && other.compute_instance == scope.compute_instance;
      });
      if (mig != gpu->mig_devices.end()) {
        device.uuid = mig->uuid;
        device.mig_index = mig->index;
        device.model = mig->profile;
      }
    }
    view.devices.push_back(std::move(device));
  }
  std::ranges::stable_sort(view.devices, {}, [](const DeviceView& device) {
    return std::tuple(device.gpu_index.value_or(kNoInstance), device.scope.gpu, !device.scope.is_whole_gpu(),
                      device.mig_index.value_or(0));
  });
  return view;
}

std::string describe_device(const DeviceView& device) {
  if (!device.gpu_index) {
    return "GPU " + device.scope.gpu.str() +
           (device.scope.is_whole_gpu() ? "" : instance_suffix(device.scope));
  }
  const auto index = std::to_string(*device.gpu_index);
  if (device.scope.is_whole_gpu()) return "GPU " + index + " (" + device.uuid.str() + ")";
  if (!device.mig_index) return "GPU " + index + instance_suffix(device.scope);
  return "MIG " + index + ":" + std::to_string(*device.mig_index) + " (" + device.uuid.str() + ")";
}

namespace {

// "3" or "3:1".
bool has_index(const DeviceView& device, std::string_view name) {
  if (!device.gpu_index) return false;
  auto index = std::to_string(*device.gpu_index);
  if (device.scope.is_whole_gpu()) return index == name;
  return device.mig_index && index + ":" + std::to_string(*device.mig_index) == name;
}

bool has_uuid_prefix(std::string_view name) { return (name.starts_with("GPU-") || name.starts_with("MIG-")); }

std::string list_device_names(const std::vector<const DeviceView*>& devices) {
  std::vector<std::string> names;
  for (const auto* device : devices) names.push_back(describe_device(*device));
  return text::join_limited(names);
}

}  // namespace

Result<const DeviceView*> find_device(const HealthView& view, std::string_view name) {
  std::vector<const DeviceView*> fits, gpus;
  for (const auto& device : view.devices) {
    if (device.scope.is_whole_gpu()) gpus.push_back(&device);
    const bool beginning = has_uuid_prefix(name) && device.uuid.str().starts_with(name);
    if (has_index(device, name) || beginning) fits.push_back(&device);
    if (beginning && device.uuid.str() == name) return &device;
  }
  if (fits.size() == 1) return fits.front();
  const std::string quoted = "'" + std::string(name) + "'";
  if (fits.empty()) {
    return fail(Code::kNotFound, "there is no device " + quoted + " on this node; there are " +
                                     (gpus.empty() ? "none" : list_device_names(gpus)));
  }
  return fail(Code::kInvalidArgument, quoted + " is ambiguous; it matches " + list_device_names(fits));
}

bool is_full_uuid(std::string_view name) {
  if (!has_uuid_prefix(name) || name.size() != 40) return false;
  const auto rest = name.substr(4);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    const bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    const bool digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    if (dash ? c != '-' : !digit) return false;
  }
  return true;
}

namespace {

constexpr std::string_view kNames[] = {"healthy", "unmonitored", "degraded", "cordoned", "withdrawn", "lost"};
constexpr std::string_view kReasons[] = {"GpusHealthy", "NotMonitored", "GpuDegraded",
                                         "GpuCordoned", "GpuWithdrawn", "GpuLost"};

bool is_cordon(const Fault& fault) { return fault.fault_class == FaultClass::kCordoned; }

// Whether a MIG device only repeats its GPU's status.
bool has_status_of_its_gpu(const HealthView& view, const DeviceView& device) {
  if (device.scope.is_whole_gpu()) return false;
  const auto* gpu = view.find({device.scope.gpu});
  return gpu != nullptr && gpu->status.state == device.status.state &&
         gpu->status.reason == device.status.reason;
}

std::optional<bool> condition_status(Severity severity) {
  if (severity == Severity::kUnmonitored) return std::nullopt;
  return severity < Severity::kWithdrawn;
}

std::string gpu_count_text(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " GPU" : " GPUs");
}

}  // namespace

std::string_view enum_name(Severity severity) { return kNames[static_cast<std::size_t>(severity)]; }

Severity severity_of(const DeviceStatus& status) {
  if (status.state == DeviceState::kUnmonitored) return Severity::kUnmonitored;
  if (status.state == DeviceState::kHealthy) return Severity::kHealthy;
  if (status.state == DeviceState::kDegraded) return Severity::kDegraded;
  const auto faults = [&](auto is) { return std::ranges::any_of(status.faults, is); };
  const bool cordoned = faults(is_cordon);
  if (cordoned && !faults([](const Fault& one) { return one.effect >= Effect::kDrain && !is_cordon(one); }))
    return Severity::kCordoned;
  return status.state == DeviceState::kLost ? Severity::kLost : Severity::kWithdrawn;
}

std::string device_health_text(const DeviceView& device) {
  std::string text = describe_device(device) + " is " + std::string(enum_name(device.status.state));
  if (!device.status.reason.empty()) text += ": " + device.status.reason;
  if (!device.status.recovery_text.empty()) text += "; recovers " + device.status.recovery_text;
  return text;
}

std::string devices_health_text(std::span<const DeviceView* const> devices) {
  std::string text;
  for (const auto* device : devices.first(std::min(devices.size(), kMaxListedDevices))) {
    text += (text.empty() ? "" : ". ") + device_health_text(*device);
  }
  if (devices.size() > kMaxListedDevices) {
    text += ". " + std::to_string(devices.size() - kMaxListedDevices) + " more";
  }
  return text;
}

Severity severity_before_release(DeviceStatus status) {
  std::erase_if(status.faults,
                [](const Fault& fault) { return fault.fault_class == FaultClass::kDriverAway; });
  const auto has_effect = [&](Effect least) {
    return std::ranges::any_of(status.faults, [&](const Fault& fault) { return fault.effect >= least; });
  };
  if (has_effect(Effect::kDrain)) return severity_of(status);
  return has_effect(Effect::kFlag) ? Severity::kDegraded : Severity::kUnmonitored;
}

namespace {

NodeHealthSummary summarize_released_node(const HealthView& view) {
  NodeHealthSummary summary;
  summary.severity = Severity::kUnmonitored;
  std::vector<const DeviceView*> faulty;
  for (const auto& device : view.devices) {
    const auto severity = severity_before_release(device.status);
    summary.severity = std::max(summary.severity, severity);
    if (severity >= Severity::kDegraded && !has_status_of_its_gpu(view, device)) faulty.push_back(&device);
  }
  summary.healthy = condition_status(summary.severity);
  summary.reason = summary.severity == Severity::kUnmonitored
                       ? "DriverReleased"
                       : kReasons[static_cast<std::size_t>(summary.severity)];
  summary.message = std::string(kDriverReleased) + ": " + view.release->reason;
  if (!faulty.empty()) summary.message += ". " + devices_health_text(faulty);
  // Degraded GPUs work, but nothing shows that they do now.
  if (summary.severity < Severity::kWithdrawn) summary.healthy.reset();
  return summary;
}

}  // namespace

NodeHealthSummary summarize_node_health(const HealthView& view) {
  if (view.release) return summarize_released_node(view);
  if (view.devices.empty()) return {Severity::kUnmonitored, std::nullopt, "NoGpu", "no GPU is known"};
  NodeHealthSummary summary;
  std::vector<const DeviceView*> worst_first;
  std::size_t count = 0;
  for (const auto& device : view.devices) {
    if (device.scope.is_whole_gpu()) ++count;
    summary.severity = std::max(summary.severity, severity_of(device.status));
    if (has_reportable_fault(device) && !has_status_of_its_gpu(view, device)) worst_first.push_back(&device);
  }
  std::ranges::stable_sort(worst_first, std::greater(),
                           [](const DeviceView* device) { return severity_of(device->status); });
  summary.healthy = condition_status(summary.severity);
  summary.reason = kReasons[static_cast<std::size_t>(summary.severity)];
  summary.message = devices_health_text(worst_first);
  if (summary.severity == Severity::kHealthy) summary.message = gpu_count_text(count) + " without a fault";
  if (summary.severity == Severity::kUnmonitored) {
    summary.message = "no source would report a fault of some of " + gpu_count_text(count);
  }
  return summary;
}

std::optional<std::string> preflight_label(const HealthView& view) {
  for (const char* result : {"failed", "slow", "waiting", "unknown", "passed"}) {
    if (std::ranges::find(view.devices, result, &DeviceView::preflight) != view.devices.end()) return result;
  }
  return std::nullopt;
}

const DeviceView* find_device_or_gpu(const HealthView& view, const Scope& held) {
  const auto* device = view.find(held);
  return device != nullptr ? device : view.find({held.gpu});
}

}  // namespace gpulet::health
