#include "inventory/snapshot_reader.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "base/text.h"
#include "inventory/pci_gpus.h"
#include "nvml/return_codes.h"
#include "nvml/session.h"
#include "nvml/usage.h"

namespace gpulet::inventory {
namespace {

using nvml::Session;

// Stores a value, or why the driver did not return it. Errors: only those that concern the whole GPU.
template <class T, class U>
Status store_value(Gpu& gpu, GpuValue name, Result<T> value, U& into) {
  if (value) {
    into = std::move(*value);
    return {};
  }
  if (nvml::is_device_fault(value.error())) return fail(value.error());
  gpu.not_read.emplace(name, value.error());
  return {};
}

PciAddress to_address(const nvml::PciInfo& info) { return {info.domain, info.bus, info.device, 0}; }

constexpr std::size_t kDriverFileBytes = 4096;      // more than a GPU's file in /proc has
constexpr std::uint64_t kMaxDeviceMinor = 0xFFFFF;  // of any device node

// From NVML, else from the driver's file in /proc: "Device Minor: \t 0".
Result<unsigned> minor_number(const Session& session, nvml::Device device, const PciAddress& pci,
                              const std::vector<std::string>& sys_roots) {
  auto minor = session.minor_number(device);
  if (minor || nvml::is_device_fault(minor.error())) return minor;
  for (const auto& root : sys_roots) {
    const auto content =
        read_prefix(root + "/proc/driver/nvidia/gpus/" + pci.sysfs_text() + "/information", kDriverFileBytes);
    if (!content) continue;
    for (const auto& line : text::split(*content, '\n')) {
      constexpr std::string_view kKey = "Device Minor:";
      const auto number = line.starts_with(kKey)
                              ? text::parse_unsigned(text::trim(std::string_view(line).substr(kKey.size())))
                              : std::nullopt;
      if (number && *number <= kMaxDeviceMinor) return static_cast<unsigned>(*number);
    }
  }
  return minor;
}

// Data is transferred on both edges of the memory clock.
Status read_bandwidth(const Session& session, nvml::Device device, Gpu& gpu) {
  const nvml::Usage usage(session, device);
  unsigned bits = 0, mhz = 0;
  GPULET_TRY(store_value(gpu, GpuValue::kBandwidth, usage.memory_bus_width(), bits));
  GPULET_TRY(store_value(gpu, GpuValue::kBandwidth, usage.max_clock(nvml::Clock::kMemory), mhz));
  gpu.memory_bandwidth = std::uint64_t{bits} / 8 * mhz * 2 * 1'000'000;
  return {};
}

Status read_links(const Session& session, nvml::Device device, Gpu& gpu) {
  for (unsigned link = 0; link < nvml::kMaxNvLinks; ++link) {
    const auto active = session.nvlink_active(device, link);
    if (!active && active.error().code() == Code::kInvalidArgument && link != 0) break;  // beyond the last
    bool is_active = false;
    GPULET_TRY(store_value(gpu, GpuValue::kNvLinks, active, is_active));
    if (!active && link == 0) break;
    if (!is_active) continue;
    NvLink found;
    found.index = link;
    nvml::LinkRemote remote = nvml::LinkRemote::kOther;
    GPULET_TRY(store_value(gpu, GpuValue::kNvLinks, session.nvlink_remote_type(device, link), remote));
    found.kind = remote == nvml::LinkRemote::kGpu      ? NvLinkRemote::kGpu
                 : remote == nvml::LinkRemote::kSwitch ? NvLinkRemote::kSwitch
                                                       : NvLinkRemote::kOther;
    nvml::PciInfo pci;
    GPULET_TRY(store_value(gpu, GpuValue::kNvLinks, session.nvlink_remote(device, link), pci));
    found.remote = to_address(pci);
    gpu.nvlinks.push_back(found);
  }
  return {};
}

// By its slices if the driver's name has no profile.
void set_profile_name(const std::string& name, const Gpu& gpu, MigDevice& mig) {
  mig.profile = mig_profile_of_name(name);
  if (mig.profile.empty() && mig.gpu_slices != 0)
    mig.profile = mig_profile_of_slices(mig.compute_slices, mig.gpu_slices, mig.memory, gpu.memory);
}

// Errors: those of the calls without which it cannot be offered, and those of the whole GPU.
Status read_mig_device(const Session& session, nvml::Device device, nvml::Device parent, Gpu& gpu,
                       MigDevice& mig) {
  GPULET_TRY_ASSIGN(mig.uuid, session.device_uuid(device));
  GPULET_TRY_ASSIGN(mig.gpu_instance, session.gpu_instance_id(device));
  GPULET_TRY_ASSIGN(mig.compute_instance, session.compute_instance_id(device));
  nvml::Attributes attributes;
  GPULET_TRY(store_value(gpu, GpuValue::kMigAttributes, session.attributes(device), attributes));
  mig.gpu_slices = attributes.gpu_slices;
  mig.compute_slices = attributes.compute_slices;
  mig.memory = mebibytes(attributes.memory_mib);
  mig.multiprocessors = attributes.multiprocessors;
  mig.copy_engines = attributes.copy_engines;
  mig.decoders = attributes.decoders;
  mig.encoders = attributes.encoders;
  mig.jpegs = attributes.jpegs;
  mig.ofas = attributes.ofas;
  std::string name;
  GPULET_TRY(store_value(gpu, GpuValue::kMigAttributes, session.product_name(device), name));
  set_profile_name(name, gpu, mig);
  // The driver reports it only to privileged processes; nothing else depends on it.
  std::optional<nvml::GpuInstanceInfo> instance;
  GPULET_TRY(store_value(gpu, GpuValue::kMigAttributes, session.gpu_instance_info(parent, mig.gpu_instance),
                         instance));
  if (!instance) return {};
  mig.gpu_instance_profile = instance->profile;
  mig.placement_start = instance->placement.start;
  mig.placement_size = instance->placement.size;
  return {};
}

// Where the driver does not return the maximum: more than any GPU has.
constexpr unsigned kMostMigDevices = 16;

Status read_mig_list(const Session& session, nvml::Device device, Gpu& gpu) {
  unsigned count = kMostMigDevices;
  if (const auto maximum = session.max_mig_devices(device)) {
    count = *maximum;
  } else if (nvml::is_device_fault(maximum.error())) {
    return fail(maximum.error());
  }
  for (unsigned i = 0; i < count; ++i) {
    const auto handle = session.mig_device(device, i);
    // An instance that is destroyed while it is read is omitted.
    if (!handle && nvml::is_gone(handle.error())) continue;
    MigDevice mig;
    mig.index = i;
    const auto status = handle ? read_mig_device(session, *handle, device, gpu, mig) : fail(handle.error());
    if (status) {
      gpu.mig_devices.push_back(std::move(mig));
    } else if (nvml::is_device_fault(status.error())) {
      return status;
    } else if (!handle || !nvml::is_gone(status.error()) || session.device_uuid(*handle)) {
      // It exists: only what is needed to offer it is missing.
      gpu.not_read.emplace(GpuValue::kMig, status.error());
    }
  }
  return {};
}

Status read_mig(const Session& session, nvml::Device device, Gpu& gpu) {
  const auto mode = session.mig_mode(device);
  if (!mode && nvml::is_device_fault(mode.error())) return fail(mode.error());
  if (mode) {
    gpu.mig_capable = true;
    gpu.mig_enabled = mode->current;
    if (mode->pending != mode->current) gpu.mig_pending = mode->pending;
    return mode->current ? read_mig_list(session, device, gpu) : Status();
  }
  gpu.not_read.emplace(GpuValue::kMig, mode.error());
  if (mode.error().code() == Code::kUnsupported) return {};
  // MIG devices prove that the mode is on.
  GPULET_TRY(read_mig_list(session, device, gpu));
  gpu.mig_capable = gpu.mig_enabled = !gpu.mig_devices.empty();
  return {};
}

Status read_fabric(const Session& session, nvml::Device device, Gpu& gpu) {
  nvml::FabricInfo fabric;
  GPULET_TRY(store_value(gpu, GpuValue::kFabric, session.fabric_info(device), fabric));
  if (fabric.completed && !fabric.cluster_uuid.empty())
    gpu.fabric = Fabric{fabric.cluster_uuid, fabric.clique_id};
  return {};
}

Status read_details(const Session& session, const std::vector<std::string>& sys_roots, Gpu& gpu) {
  GPULET_TRY_ASSIGN(const auto device, session.device(gpu.index));
  // Identity first: a GPU that fails later is still identified.
  GPULET_TRY_ASSIGN(gpu.uuid, session.device_uuid(device));
  GPULET_TRY_ASSIGN(const auto pci, session.pci(device));
  gpu.pci = to_address(pci);
  gpu.pci_device_id = pci.device_id;
  gpu.pci_subsystem_id = pci.subsystem_id;
  read_sysfs_details(sys_roots, gpu);
  if (!gpu.vgpu_known) gpu.vgpu_known = !session.is_vgpu(device).value_or(true);
  GPULET_TRY(store_value(gpu, GpuValue::kModel, session.product_name(device), gpu.model));
  GPULET_TRY(store_value(gpu, GpuValue::kBrand, session.product_brand(device), gpu.brand));
  GPULET_TRY(store_value(gpu, GpuValue::kSerial, session.serial(device), gpu.serial));
  GPULET_TRY(
      store_value(gpu, GpuValue::kMinor, minor_number(session, device, gpu.pci, sys_roots), gpu.minor));
  nvml::ComputeCapability compute;
  GPULET_TRY(store_value(gpu, GpuValue::kCompute, session.compute_capability(device), compute));
  gpu.compute_major = compute.major;
  gpu.compute_minor = compute.minor;
  gpu.architecture = architecture_name(compute.major, compute.minor);
  GPULET_TRY(store_value(gpu, GpuValue::kMemory, session.memory_total(device), gpu.memory));
  GPULET_TRY(read_bandwidth(session, device, gpu));
  GPULET_TRY(store_value(gpu, GpuValue::kDisplay, session.display_attached(device), gpu.display));
  GPULET_TRY(read_mig(session, device, gpu));
  GPULET_TRY(read_links(session, device, gpu));
  return read_fabric(session, device, gpu);
}

PcieDistance to_distance(nvml::Ancestor ancestor) {
  switch (ancestor) {
    case nvml::Ancestor::kInternal:
      return PcieDistance::kInternal;
    case nvml::Ancestor::kSingle:
      return PcieDistance::kSingle;
    case nvml::Ancestor::kMultiple:
      return PcieDistance::kMultiple;
    case nvml::Ancestor::kHostBridge:
      return PcieDistance::kHostBridge;
    case nvml::Ancestor::kNode:
      return PcieDistance::kNode;
    case nvml::Ancestor::kSystem:
      return PcieDistance::kSystem;
  }
  return PcieDistance::kUnknown;
}

}  // namespace

Result<DriverSummary> read_driver_summary(const Session& session) {
  DriverSummary machine;
  machine.driver.version = session.driver_version();
  GPULET_TRY_ASSIGN(machine.gpu_count, session.device_count());
  machine.driver.cuda_version = session.cuda_version().value_or(0);
  return machine;
}

Gpu read_gpu(const Session& session, unsigned index, const std::vector<std::string>& sys_roots) {
  Gpu gpu;
  gpu.index = index;
  if (const auto status = read_details(session, sys_roots, gpu); !status) {
    gpu.unreadable = Error(status.error().code(), status.error().message(), gpu.uuid.str());
  }
  return gpu;
}

bool is_display_only(const Gpu& gpu) {
  return gpu.model == "DGX Display" || gpu.model == "NVIDIA DGX Display";
}

Result<std::string> mig_layout_text(const Session& session, unsigned index) {
  GPULET_TRY_ASSIGN(const auto device, session.device(index));
  Gpu gpu;
  const auto mode = session.mig_mode(device);
  if (!mode && mode.error().code() == Code::kUnsupported) return mig_layout_text(gpu);
  if (!mode) return fail(mode.error());
  gpu.mig_enabled = mode->current;
  if (mode->pending != mode->current) gpu.mig_pending = mode->pending;
  if (!mode->current) return mig_layout_text(gpu);
  GPULET_TRY_ASSIGN(const unsigned count, session.max_mig_devices(device));
  for (unsigned i = 0; i < count; ++i) {
    const auto handle = session.mig_device(device, i);
    if (!handle && nvml::is_gone(handle.error())) continue;
    if (!handle) return fail(handle.error());
    MigDevice mig;
    mig.index = i;
    auto uuid = session.device_uuid(*handle);
    if (!uuid && nvml::is_gone(uuid.error())) continue;
    if (!uuid) return fail(uuid.error());
    mig.uuid = std::move(*uuid);
    gpu.mig_devices.push_back(std::move(mig));
  }
  return mig_layout_text(gpu);
}

std::string mig_layout_text(const Gpu& gpu) {
  std::string layout = gpu.mig_enabled ? "on" : "off";
  if (gpu.mig_pending) layout += *gpu.mig_pending ? ">on" : ">off";
  for (const auto& mig : gpu.mig_devices) layout += " " + std::to_string(mig.index) + "=" + mig.uuid.str();
  return layout;
}

namespace {

void fill_mig_device(MigDevice& mig, const std::vector<MigDevice>& previous) {
  const auto known = std::ranges::find(previous, mig.uuid, &MigDevice::uuid);
  if (known == previous.end()) return;
  const unsigned index = mig.index;
  mig = *known;
  mig.index = index;
}

void fill_values(Gpu& gpu, const Gpu& previous) {
  const auto fill = [&](GpuValue name, auto... members) {
    if (gpu.not_read.contains(name)) ((gpu.*members = previous.*members), ...);
  };
  fill(GpuValue::kModel, &Gpu::model);
  fill(GpuValue::kBrand, &Gpu::brand);
  fill(GpuValue::kSerial, &Gpu::serial);
  fill(GpuValue::kMinor, &Gpu::minor);
  fill(GpuValue::kCompute, &Gpu::compute_major, &Gpu::compute_minor, &Gpu::architecture);
  fill(GpuValue::kMemory, &Gpu::memory);
  fill(GpuValue::kBandwidth, &Gpu::memory_bandwidth);
  fill(GpuValue::kMig, &Gpu::mig_capable, &Gpu::mig_enabled, &Gpu::mig_pending, &Gpu::mig_devices);
  fill(GpuValue::kNvLinks, &Gpu::nvlinks);
  fill(GpuValue::kFabric, &Gpu::fabric);
  fill(GpuValue::kDisplay, &Gpu::display);
  if (!gpu.not_read.contains(GpuValue::kMigAttributes)) return;
  for (auto& mig : gpu.mig_devices) fill_mig_device(mig, previous.mig_devices);
}

// Where neither NVML, /proc nor the previous snapshot has it, the device node could be another GPU's.
void require_minor(Gpu& gpu, bool known) {
  const auto missing = gpu.not_read.find(GpuValue::kMinor);
  if (known || gpu.unreadable || missing == gpu.not_read.end()) return;
  if (missing->second.code() == Code::kUnsupported) return;  // a platform without device nodes
  gpu.unreadable = missing->second.with_context("the number of its device node is unknown");
}

}  // namespace

void fill_from_previous(std::vector<Gpu>& read, const Snapshot& previous) {
  const auto taken = [&](const DeviceUuid& uuid) {
    return std::ranges::any_of(read, [&](const Gpu& gpu) { return gpu.uuid == uuid; });
  };
  for (auto& gpu : read) {
    const Gpu* known = nullptr;
    for (const auto& candidate : previous.gpus) {
      if (candidate.uuid.empty()) continue;
      const bool same = !gpu.uuid.empty() ? candidate.uuid == gpu.uuid
                                          : candidate.index == gpu.index && !taken(candidate.uuid);
      if (same) known = &candidate;
    }
    if (known != nullptr && !gpu.unreadable) fill_values(gpu, *known);
    require_minor(gpu,
                  known != nullptr && !(known->unreadable && known->not_read.contains(GpuValue::kMinor)));
    if (known == nullptr || !gpu.unreadable) continue;
    Gpu kept = *known;
    kept.index = gpu.index;
    kept.unreadable = std::move(gpu.unreadable);
    kept.health = {};
    gpu = std::move(kept);
  }
}

std::vector<std::size_t> DistanceCache::missing_from(const std::vector<Gpu>& gpus, std::size_t from) const {
  std::vector<std::size_t> places;
  if (gpus[from].unreadable) return places;
  for (std::size_t to = from + 1; to < gpus.size(); ++to) {
    if (gpus[to].unreadable) continue;
    if (!distances_.contains(std::minmax(gpus[from].pci, gpus[to].pci))) places.push_back(to);
  }
  return places;
}

void DistanceCache::add_distance(const PciAddress& a, const PciAddress& b, PcieDistance distance) {
  distances_[std::minmax(a, b)] = distance;
}

std::vector<PcieDistance> DistanceCache::distance_matrix(const std::vector<Gpu>& gpus) const {
  std::vector<PcieDistance> all(gpus.size() * gpus.size(), PcieDistance::kUnknown);
  for (std::size_t a = 0; a < gpus.size(); ++a) {
    all[a * gpus.size() + a] = PcieDistance::kInternal;
    for (std::size_t b = a + 1; b < gpus.size(); ++b) {
      const auto known = distances_.find(std::minmax(gpus[a].pci, gpus[b].pci));
      if (known != distances_.end()) all[a * gpus.size() + b] = all[b * gpus.size() + a] = known->second;
    }
  }
  return all;
}

std::vector<std::optional<PcieDistance>> read_distances(const Session& session, unsigned from,
                                                        const std::vector<unsigned>& to) {
  std::vector<std::optional<PcieDistance>> distances(to.size());
  const auto first = session.device(from);
  if (!first) return distances;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto second = session.device(to[i]);
    if (!second) continue;
    const auto ancestor = session.common_ancestor(*first, *second);
    if (ancestor) distances[i] = to_distance(*ancestor);
    // The next read would return no more.
    if (!ancestor && ancestor.error().code() == Code::kUnsupported) distances[i] = PcieDistance::kUnknown;
  }
  return distances;
}

std::string architecture_name(unsigned major, unsigned minor) {
  switch (major) {
    case 1:
      return "tesla";
    case 2:
      return "fermi";
    case 3:
      return "kepler";
    case 5:
      return "maxwell";
    case 6:
      return "pascal";
    case 7:
      return minor < 5 ? "volta" : "turing";
    case 8:
      return minor < 9 ? "ampere" : "ada-lovelace";
    case 9:
      return "hopper";
    case 10:
    case 12:
      return "blackwell";
    case 13:
      return "rubin";
    default:
      return "undefined";
  }
}

std::string mig_profile_of_name(const std::string& name) {
  constexpr std::string_view kMark = " MIG ";
  const auto at = name.rfind(kMark);
  if (at == std::string::npos) return {};
  std::string profile(text::trim(std::string_view(name).substr(at + kMark.size())));
  const bool shaped = !profile.empty() && profile.front() >= '0' && profile.front() <= '9' &&
                      profile.find(' ') == std::string::npos && profile.find("g.") != std::string::npos;
  return shaped ? profile : std::string();
}

std::string mig_profile_of_slices(unsigned compute_slices, unsigned gpu_slices, Bytes memory, Bytes total) {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  double gb = std::round(static_cast<double>(memory.value) / kGib);
  if (total.value != 0) {
    const double eighths =
        std::ceil(static_cast<double>(memory.value) / static_cast<double>(total.value) * 8);
    gb = std::round(eighths / 8 * std::ceil(static_cast<double>(total.value) / kGib));
  }
  std::string profile =
      std::to_string(gpu_slices) + "g." + std::to_string(static_cast<std::uint64_t>(gb)) + "gb";
  if (compute_slices != gpu_slices) profile.insert(0, std::to_string(compute_slices) + "c.");
  return profile;
}

}  // namespace gpulet::inventory
