#include "health/report/health_report.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "health/xid/xid_catalogue.h"

namespace gpulet::health {
namespace {

// Timeouts of the GPU system processor, which a reset alone often does not end. Source: NVIDIA's catalogue.
constexpr std::uint64_t kGspTimeout = 119, kGspError = 120;
constexpr std::uint64_t kPowerCable = 54;

constexpr std::string_view kResetIt = "End all workloads on it, then reset it: {reset}";

struct ActionTemplate {
  FaultClass fault_class;
  std::string_view text;  // {gpu}: as nvidia-smi takes it; {device}: as gpulet does; {reset}: reset_command()
};
using enum FaultClass;
constexpr ActionTemplate kActionTemplates[] = {
    {kXidReset, kResetIt},
    {kXidReboot, "Reboot the node; if it is lost again, check its power, riser and seating"},
    {kXidVirtualMachine, "Restart the virtual machine"},
    {kXidEcc, kResetIt},
    {kXidNvLink,
     "Reset all GPUs of its NVLink fabric together ({reset-all}) and restart the fabric manager; a link that "
     "fails again is hardware"},
    {kXidSupport, "Reset it when convenient: {reset}; if it returns, contact NVIDIA support"},
    {kXidUnknown,
     "Look up the XID in NVIDIA's catalogue; if it lists no action, watch whether the XID returns"},
    {kXidWatched, "DP_ENABLE_HEALTHCHECKS names this XID: find the application that causes it"},
    {kApplicationRepeat,
     "Run a diagnosis once nothing runs on it (dcgmi diag -r 3 -i {gpu}); if it is clean, the applications "
     "share "
     "a bug"},
    {kRecoveryAction, "Do what the driver recommends; for a reset: {reset}"},
    {kRecoveryDrain, "Let workloads on it finish or evict them, then reset it: {reset}"},
    {kResetRequired, kResetIt},
    {kLost, "Check lspci and the kernel log; if it stays lost, reboot the node and check its seating"},
    {kSilent, "Check the kernel log: a driver call hangs; if it persists, reboot the node"},
    {kDriverAway, "Check that the driver is loaded (nvidia-smi, or the driver's container)"},
    {kRowRemapPending, "Reset it when convenient: {reset}"},
    {kRowRemapFailed, "Replace it: no spare memory row is left"},
    {kRetiredPages, "Reset it when convenient: {reset}; with more than 60 retired pages, have it replaced"},
    {kEccGrowth, "Watch it: if new errors keep occurring, reset it and have it diagnosed (dcgmi diag)"},
    {kSramThreshold, "Have it diagnosed and replaced: its SRAM errors are beyond NVIDIA's limit"},
    {kCorrectableStorm, "Watch it: if storms return, have it diagnosed (dcgmi diag)"},
    {kNvLinkDown,
     "Check the link (nvidia-smi nvlink -s -i {gpu}) and the fabric manager; a link that stays down is "
     "hardware"},
    {kNvLinkErrors, "Check its link errors (nvidia-smi nvlink -e -i {gpu}); reseat the board or bridge"},
    {kPcieReplays, "Reseat the card and check its riser: its PCIe link is noisy"},
    {kPcieWidth, "Reseat the card and check its riser: PCIe lanes are missing"},
    {kThermal, "Check its cooling: fans, airflow, room"},
    {kPower, "Check its power limit (nvidia-smi -q -d POWER -i {gpu}) and its supply"},
    {kFabric, "Restart the fabric manager; if that does not help, reset all GPUs of the fabric together"},
    {kFabricDegraded, "Check the fabric manager's log and the switch links"},
    {kInforom, "Contact NVIDIA support: the InfoROM must be rewritten or the card replaced"},
    {kSwitch,
     "Reset all GPUs of the switch together, or reboot the node; a fatal error that returns is hardware"},
    {kProbeFailed,
     "End all workloads on it, then reset it: {reset}; it is checked again each "
     "gpulet.preflight.retryInterval, or where that is disabled, run gpulet uncordon {device}"},
    {kSlowCopies,
     "Check its links (nvidia-smi nvlink -s -i {gpu}; nvidia-smi -q -i {gpu}: PCIe width); it is checked "
     "again each gpulet.preflight.retryInterval, or where that is disabled, run gpulet uncordon {device}"},
    {kCordoned, "Run gpulet uncordon {device} when the work is done"},
};
static_assert(std::size(kActionTemplates) == kFaultClassCount);
static_assert(std::ranges::is_sorted(kActionTemplates, {}, &ActionTemplate::fault_class));

std::string fill_placeholders(std::string_view text, const DeviceView& device) {
  const auto gpu = device.gpu_index ? std::to_string(*device.gpu_index) : device.scope.gpu.str();
  std::string own = gpu;
  if (!device.scope.is_whole_gpu()) own = device.uuid.empty() ? gpu : device.uuid.str();
  const std::pair<std::string_view, std::string> values[] = {
      {"{gpu}", gpu}, {"{device}", own}, {"{reset}", reset_command(gpu)}, {"{reset-all}", reset_command("")}};
  std::string out;
  while (!text.empty()) {
    const auto* value =
        std::ranges::find_if(values, [&](const auto& one) { return text.starts_with(one.first); });
    if (value != std::end(values)) {
      out += value->second;
      text.remove_prefix(value->first.size());
    } else {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string_view action_template(const Fault& fault) {
  const bool xid = fault.fault_class == kXidReset || fault.fault_class == kXidSupport;
  if (xid && (fault.code == kGspTimeout || fault.code == kGspError)) {
    return "End all workloads on it, then reset it: {reset}; if it returns, power-cycle the node and look "
           "for "
           "a newer driver";
  }
  if (xid && fault.code == kPowerCable) return "Check its power cables";
  if (fault.fault_class == kXidSupport) {
    const auto* known = find_xid(fault.code);
    if (known != nullptr && known->action == XidAction::kUpdateSoftware)
      return "Update its driver or firmware, then reset it: {reset}";
  }
  return kActionTemplates[static_cast<std::size_t>(fault.fault_class)].text;
}

}  // namespace

std::string reset_command(const std::string& gpu) {
  return "gpulet driver release && nvidia-smi --gpu-reset" + (gpu.empty() ? "" : " -i " + gpu) +
         "; gpulet driver acquire";
}

std::string recommended_action(const Fault& fault, const DeviceView& device) {
  if (fault.fault_class == FaultClass::kDriverAway && fault.detail.starts_with(kDriverReleased))
    return "Wait until the node label is gone, or run gpulet driver acquire";
  return fill_placeholders(action_template(fault), device);
}

std::string next_step(const DeviceView& device) {
  const auto& status = device.status;
  if (status.state == DeviceState::kUnmonitored)
    return "Check why its sources are unavailable: the reasons are listed with it";
  if (status.faults.empty()) return {};
  if (status.state == DeviceState::kRecovering)
    return "Nothing to do: it returns to service once its checks have passed";
  if (!device.repair.empty()) return device.repair;
  return recommended_action(status.faults.front(), device);
}

namespace {

using Json = nlohmann::ordered_json;

constexpr unsigned kVersion = 1;
constexpr std::size_t kMaxReportFaults = kMaxFaults + kFaultClassCount;

Json instance_json(std::uint32_t id) { return id == kNoInstance ? Json() : Json(id); }

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

class ReportWriter {
 public:
  explicit ReportWriter(const ClockPair& at) : at_(at) {}

  Json device_json(const DeviceView& device) const {
    const auto& status = device.status;
    Json json{{"name", describe_device(device)},
              {"uuid", device.uuid.str()},
              {"gpu", device.scope.gpu.str()},
              {"gpuInstance", instance_json(device.scope.gpu_instance)},
              {"computeInstance", instance_json(device.scope.compute_instance)},
              {"index", or_null(device.gpu_index)},
              {"migIndex", or_null(device.mig_index)},
              {"model", device.model},
              {"slot", device.slot},
              {"state", enum_name(status.state)},
              {"offered", is_offered(device)},
              {"since", time_json(status.since)},
              {"reason", status.reason},
              {"comesBack", status.recovery_text},
              {"due", time_json(status.due)},
              {"relapses", status.relapses},
              {"next", next_step(device)},
              {"faults", Json::array()},
              {"absences", Json::array()}};
    if (device.mig_pending) json["migPending"] = *device.mig_pending;
    if (!device.excluded.empty()) json["excluded"] = device.excluded;
    if (!device.repair.empty()) json["repair"] = device.repair;
    if (!device.preflight.empty()) json["preflight"] = device.preflight;
    if (!device.preflight_detail.empty()) json["preflightDetail"] = device.preflight_detail;
    for (const auto& one : status.faults) json["faults"].push_back(fault_json(one, device));
    for (const auto& absence : device.unavailable_sources)
      json["absences"].push_back({{"source", enum_name(absence.source)}, {"why", absence.reason}});
    return json;
  }

 private:
  std::string time_json(Time time) const {
    return format_wall_time(at_.wall - std::chrono::duration_cast<WallTime::duration>(at_.now - time));
  }
  Json time_json(const std::optional<Time>& moment) const {
    return moment ? Json(time_json(*moment)) : Json();
  }

  Json fault_json(const Fault& fault, const DeviceView& device) const {
    return {{"class", fault_rule(fault.fault_class).name},
            {"code", fault.code},
            {"gpuInstance", instance_json(fault.scope.gpu_instance)},
            {"computeInstance", instance_json(fault.scope.compute_instance)},
            {"effect", enum_name(fault.effect)},
            {"opened", time_json(fault.opened)},
            {"lastSeen", time_json(fault.last_seen)},
            {"count", fault.count},
            {"detail", fault.detail},
            {"linked", fault.linked},
            {"proved", time_json(fault.condition_met_at)},
            {"due", time_json(fault.due)},
            {"text", fault.fault_text()},
            {"next", recommended_action(fault, device)}};
  }

  const ClockPair& at_;
};

// Reads the members of one object. Records the first error with its place: "devices[3].state".
class MemberReader {
 public:
  MemberReader(const Json& object, std::string place, std::string& wrong)
      : object_(object), path_(std::move(place)), error_(wrong) {
    if (!object.is_object()) set_error({}, "is not an object");
  }

  std::string text_member(const char* name) {
    const auto& value = find_member(name);
    if (value.is_string()) return value.get<std::string>();
    set_error(name, "is not a string");
    return {};
  }
  std::string optional_text_member(const char* name) {
    return find_member(name).is_null() ? std::string() : text_member(name);
  }
  std::uint64_t number_member(const char* name, std::uint64_t most) {
    const auto& value = find_member(name);
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= most) return value.get<std::uint64_t>();
    set_error(name, "is not a number up to " + std::to_string(most));
    return 0;
  }
  std::optional<bool> optional_bool_member(const char* name) {
    if (find_member(name).is_null()) return std::nullopt;
    return bool_member(name);
  }
  std::optional<unsigned> index_member(const char* name) {
    if (find_member(name).is_null()) return std::nullopt;
    return static_cast<unsigned>(number_member(name, kNoInstance - 1));
  }
  bool bool_member(const char* name) {
    const auto& value = find_member(name);
    if (!value.is_boolean()) set_error(name, "is not a boolean");
    return value.is_boolean() && value.get<bool>();
  }
  WallTime wall_time_member(const char* name) {
    const auto wall = parse_wall_time(text_member(name));
    if (!wall) set_error(name, "is not a time");
    return wall.value_or(WallTime());
  }
  Time time_member(const char* name) { return Time(wall_time_member(name).time_since_epoch()); }
  std::optional<Time> optional_time_member(const char* name) {
    if (find_member(name).is_null()) return std::nullopt;
    return time_member(name);
  }
  std::optional<MemberReader> optional_object_member(const char* name) {
    const auto& value = find_member(name);
    if (value.is_null()) return std::nullopt;
    return MemberReader(value, at(name), error_);
  }
  Scope scope_member(const DeviceUuid& gpu) {
    return normalize_scope({gpu, index_member("gpuInstance").value_or(kNoInstance),
                            index_member("computeInstance").value_or(kNoInstance)});
  }
  // The value of `all` with that name.
  template <class T, class Named>
  T enum_member(const char* name, const Named& values) {
    const auto wanted = text_member(name);
    for (const T value : values) {
      if (gpulet::health::enum_name(value) == wanted) return value;
    }
    set_error(name, "has an unknown value");
    return {};
  }
  template <class Visit>
  void for_each_element(const char* name, std::size_t most, const Visit& visit) {
    const auto& list = find_member(name);
    if (!list.is_array()) return set_error(name, "is not a list");
    if (list.size() > most) return set_error(name, "has more than " + std::to_string(most) + " entries");
    for (std::size_t i = 0; i < list.size() && error_.empty(); ++i) {
      visit(MemberReader(list[i], at(name) + "[" + std::to_string(i) + "]", error_));
    }
  }
  void set_error(const std::string& name, const std::string& why) {
    if (error_.empty()) error_ = (name.empty() && path_.empty() ? "the document" : at(name)) + " " + why;
  }

 private:
  const Json& find_member(const char* name) const {
    static const Json none;
    if (!object_.is_object()) return none;
    const auto found = object_.find(name);
    return found == object_.end() ? none : *found;
  }
  std::string at(const std::string& name) const {
    return path_.empty() || name.empty() ? path_ + name : path_ + "." + name;
  }

  const Json& object_;
  std::string path_;
  std::string& error_;
};

std::array<Source, kSourceCount> all_sources() {
  std::array<Source, kSourceCount> sources{};
  for (std::size_t i = 0; i < kSourceCount; ++i) sources[i] = static_cast<Source>(i);
  return sources;
}
constexpr Effect kEffects[] = {Effect::kIgnore, Effect::kFlag, Effect::kDrain, Effect::kQuarantine,
                               Effect::kLose};

Fault parse_report_fault(MemberReader members, const DeviceUuid& gpu) {
  Fault fault;
  const auto fault_class = parse_fault_class(members.text_member("class"));
  if (!fault_class) members.set_error("class", "has an unknown value");
  fault.fault_class = fault_class.value_or(FaultClass::kXidUnknown);
  fault.code = members.number_member("code", ~0ull);
  fault.scope = members.scope_member(gpu);
  fault.effect = members.enum_member<Effect>("effect", kEffects);
  fault.opened = members.time_member("opened");
  fault.last_seen = members.time_member("lastSeen");
  fault.count = members.number_member("count", ~0ull);
  fault.detail = members.text_member("detail");
  fault.linked = members.bool_member("linked");
  fault.condition_met_at = members.optional_time_member("proved");
  fault.due = members.optional_time_member("due");
  return fault;
}

DeviceView parse_report_device(MemberReader members) {
  DeviceView device;
  device.uuid = DeviceUuid(members.text_member("uuid"));
  device.scope = members.scope_member(DeviceUuid(members.text_member("gpu")));
  device.gpu_index = members.index_member("index");
  device.mig_index = members.index_member("migIndex");
  device.model = members.text_member("model");
  device.slot = members.text_member("slot");
  device.mig_pending = members.optional_bool_member("migPending");
  device.excluded = members.optional_text_member("excluded");
  device.repair = members.optional_text_member("repair");
  device.preflight = members.optional_text_member("preflight");
  device.preflight_detail = members.optional_text_member("preflightDetail");
  auto& status = device.status;
  status.state = members.enum_member<DeviceState>("state", kDeviceStates);
  status.since = members.time_member("since");
  status.reason = members.text_member("reason");
  status.recovery_text = members.text_member("comesBack");
  status.due = members.optional_time_member("due");
  status.relapses = static_cast<unsigned>(members.number_member("relapses", kMaxRelapses));
  members.for_each_element("faults", kMaxReportFaults, [&](MemberReader one) {
    status.faults.push_back(parse_report_fault(std::move(one), device.scope.gpu));
  });
  members.for_each_element("absences", kSourceCount, [&](MemberReader one) {
    device.unavailable_sources.push_back(
        {one.enum_member<Source>("source", all_sources()), one.text_member("why")});
  });
  return device;
}

}  // namespace

std::string format_report(const HealthView& view) {
  Json json{{"version", kVersion}, {"at", format_wall_time(view.at.wall)}, {"devices", Json::array()}};
  const ReportWriter writer(view.at);
  for (const auto& device : view.devices) json["devices"].push_back(writer.device_json(device));
  if (view.release)
    json["driverRelease"] = {{"reason", view.release->reason}, {"closed", view.release->closed}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<HealthView> parse_report(std::string_view text) {
  const auto json = parse_json<Json>(text);
  if (json.is_discarded()) return fail(Code::kInvalidArgument, "is not valid JSON: truncated or damaged");
  std::string wrong;
  MemberReader members(json, {}, wrong);
  HealthView view;
  const auto version = members.number_member("version", ~0ull);
  if (wrong.empty() && version != kVersion) {
    return fail(Code::kInvalidArgument, "has version " + std::to_string(version) +
                                            ", but this program reads version " + std::to_string(kVersion));
  }
  view.at.wall = members.wall_time_member("at");
  view.at.now = Time(view.at.wall.time_since_epoch());
  members.for_each_element("devices", kMaxReportDevices, [&](MemberReader one) {
    view.devices.push_back(parse_report_device(std::move(one)));
  });
  if (auto release = members.optional_object_member("driverRelease"))
    view.release = {release->text_member("reason"), release->bool_member("closed")};
  if (!wrong.empty()) return fail(Code::kInvalidArgument, "is not a gpulet health report: " + wrong);
  return view;
}

Result<HealthView> read_report(const std::string& path) {
  GPULET_TRY_ASSIGN(const auto text, read_file(path, kMaxReportBytes));
  auto view = parse_report(text);
  if (!view) return fail(Error(view.error().code(), view.error().message(), path));
  return view;
}

}  // namespace gpulet::health
