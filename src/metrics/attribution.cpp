#include "metrics/attribution.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "metrics/pods.h"

namespace gpulet::metrics {
namespace {

using inventory::Gpu;
using inventory::MigDevice;

std::optional<unsigned> number_after(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return std::nullopt;
  const auto value = text::parse_unsigned(text.substr(prefix.size()));
  return value && *value <= 0xffff ? std::optional(static_cast<unsigned>(*value)) : std::nullopt;
}

// The first MIG device of the GPU instance, or that of the compute instance.
const MigDevice* mig_of(const Gpu& gpu, unsigned gpu_instance, std::optional<unsigned> compute_instance) {
  for (const auto& mig : gpu.mig_devices) {
    if (mig.gpu_instance == gpu_instance &&
        mig.compute_instance == compute_instance.value_or(mig.compute_instance))
      return &mig;
  }
  return nullptr;
}

// "GPU-UUID/GI/CI", after "MIG-".
std::optional<DeviceUuid> old_mig(std::string_view id, const inventory::Snapshot& snapshot) {
  const auto parts = text::split(id, '/');
  if (parts.size() != 3) return std::nullopt;
  const Gpu* gpu = snapshot.find(DeviceUuid(parts[0]));
  const auto gi = number_after(parts[1], ""), ci = number_after(parts[2], "");
  if (gpu == nullptr || !gi || !ci) return std::nullopt;
  const MigDevice* mig = mig_of(*gpu, *gi, ci);
  return mig == nullptr ? std::nullopt : std::optional(mig->uuid);
}

// "nvidiaM", "nvidiaM/giG".
std::optional<DeviceUuid> node_name(std::string_view id, const inventory::Snapshot& snapshot) {
  const auto parts = text::split(id, '/');
  if (parts.empty() || parts.size() > 2) return std::nullopt;
  const auto minor = number_after(parts[0], "nvidia");
  if (!minor) return std::nullopt;
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.minor != *minor) continue;
    if (parts.size() == 1) return gpu.uuid;
    const auto gi = number_after(parts[1], "gi");
    const MigDevice* mig = gi ? mig_of(gpu, *gi, std::nullopt) : nullptr;
    return mig == nullptr ? std::nullopt : std::optional(mig->uuid);
  }
  return std::nullopt;
}

bool is_mig_device(const DeviceUuid& uuid, const inventory::Snapshot& snapshot) {
  return std::any_of(snapshot.gpus.begin(), snapshot.gpus.end(), [&](const Gpu& gpu) {
    return std::any_of(gpu.mig_devices.begin(), gpu.mig_devices.end(),
                       [&](const MigDevice& mig) { return mig.uuid == uuid; });
  });
}

void insert(std::vector<std::string>& all, const std::string& one) {
  if (one.empty() || std::find(all.begin(), all.end(), one) != all.end()) return;
  all.push_back(one);
}

void sort_shares(std::vector<std::string>& shares) {
  std::sort(shares.begin(), shares.end(), [](const std::string& a, const std::string& b) {
    const auto x = text::parse_unsigned(a), y = text::parse_unsigned(b);
    if (x && y && *x != *y) return *x < *y;
    return x.has_value() != y.has_value() ? x.has_value() : a < b;
  });
}

Holder& add_holder(std::vector<Holder>& holders, const ContainerDevices& container,
                   const std::string& share) {
  auto at = std::lower_bound(holders.begin(), holders.end(), container.pod,
                             [](const Holder& holder, const PodName& pod) { return holder.pod < pod; });
  if (at == holders.end() || at->pod != container.pod) at = holders.insert(at, Holder{container.pod, {}, {}});
  insert(at->containers, container.container);
  insert(at->shares, share);
  return *at;
}

// Scales `parts` in proportion so that their sum does not exceed `whole`. Zero stays zero.
void fit(std::vector<std::uint64_t>& parts, std::uint64_t whole) {
  long double sum = 0;
  for (const auto part : parts) sum += static_cast<long double>(part);
  if (sum <= static_cast<long double>(whole)) return;
  std::uint64_t left = whole;
  std::vector<std::uint64_t*> some;
  for (auto& part : parts) {
    if (part == 0) continue;
    some.push_back(&part);
    const auto scaled = static_cast<long double>(part) / sum * static_cast<long double>(whole);
    part = std::min(static_cast<std::uint64_t>(scaled), left);
    left -= part;
  }
  // Rounding lost less than one of each.
  for (std::size_t i = 0; left > 0 && i < some.size(); ++i, --left) ++*some[i];
}

void fit(std::vector<double>& parts, double whole) {
  double sum = 0;
  for (const auto part : parts) sum += part;
  if (sum <= whole) return;
  for (auto& part : parts) part *= whole / sum;
}

}  // namespace

std::optional<DeviceShare> resolve_device_id(const DeviceId& id, const inventory::Snapshot& snapshot) {
  std::string_view text = id.str();
  std::string share;
  for (const std::string_view mark : {"::", "/vgpu"}) {
    const auto at = text.rfind(mark);
    if (at == std::string_view::npos) continue;
    share = text.substr(at + mark.size());
    if (share.empty()) return std::nullopt;
    text = text.substr(0, at);
    break;
  }
  std::optional<DeviceUuid> device;
  if (text.starts_with("MIG-GPU-")) {
    device = old_mig(text.substr(std::string_view("MIG-").size()), snapshot);
  } else if (text.starts_with("nvidia")) {
    device = node_name(text, snapshot);
  } else {
    const DeviceUuid uuid{std::string(text)};
    if (snapshot.find(uuid) != nullptr || is_mig_device(uuid, snapshot)) device = uuid;
  }
  if (!device) return std::nullopt;
  return DeviceShare{*device, std::move(share)};
}

Holders find_holders(std::span<const ContainerDevices> containers, const inventory::Snapshot& snapshot) {
  Holders all;
  for (const auto& container : containers) {
    for (const auto& [resource, ids] : container.devices) {
      for (const auto& id : ids) {
        const auto place = resolve_device_id(id, snapshot);
        if (!place) continue;
        auto& held = add_holder(all[place->device], container, place->share).held_shares;
        const HeldShare one{resource, container.container, place->share};
        const auto at = std::lower_bound(held.begin(), held.end(), one);
        if (at == held.end() || *at != one) held.insert(at, one);
        const Gpu* gpu = snapshot.find(place->device);
        if (gpu == nullptr || !gpu->mig_enabled) continue;
        for (const auto& mig : gpu->mig_devices) add_holder(all[mig.uuid], container, place->share);
      }
    }
  }
  for (auto& [device, holders] : all) {
    for (auto& holder : holders) {
      std::sort(holder.containers.begin(), holder.containers.end());
      sort_shares(holder.shares);
    }
  }
  return all;
}

std::optional<PodName> find_pod(std::span<const std::string> uids, const PodByUid& known) {
  for (const auto& uid : uids) {
    if (const auto found = known.find(uid); found != known.end()) return found->second;
  }
  return std::nullopt;
}

PodShares attribute(const DeviceActivity& device, std::span<const Holder> holders, const PodByPid& pods) {
  // Usage by the processes of each holder; the last element is that of other known Pods.
  std::vector<std::uint64_t> memory(holders.size() + 1);
  std::vector<double> busy(holders.size() + 1);
  bool any_known = false;
  for (const auto& process : device.processes) {
    const auto pod = pods.find(process.pid);
    if (pod == pods.end()) continue;
    any_known = true;
    std::size_t i = 0;
    while (i < holders.size() && holders[i].pod != pod->second) ++i;
    memory[i] += process.memory.value_or(Bytes{}).value;
    if (std::isfinite(process.sm) && process.sm > 0) busy[i] += process.sm;
  }
  const double whole = std::isfinite(device.busy) ? std::max(0.0, device.busy) : 0;
  fit(memory, device.memory.value);
  fit(busy, whole);

  PodShares shares;
  shares.is_known = holders.size() < 2 || any_known || device.processes.empty();
  shares.is_busy_known = shares.is_known && (holders.size() < 2 || device.has_process_times);
  shares.unattributed_memory = device.memory;
  shares.unattributed_busy = whole;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    const bool alone = holders.size() == 1;
    PodShare use{holders[i], Bytes{alone ? device.memory.value - memory[1] : memory[i]},
                 alone ? std::max(0.0, whole - busy[1]) : busy[i]};
    shares.unattributed_memory.value -= use.memory.value;
    shares.unattributed_busy = std::max(0.0, shares.unattributed_busy - use.busy);
    shares.pods.push_back(std::move(use));
  }
  return shares;
}

std::optional<PodName> pod_of_process(const ProcessSample& process, std::span<const PodShare> shares,
                                      const PodByPid& pods) {
  if (const auto known = pods.find(process.pid); known != pods.end()) return known->second;
  if (shares.size() != 1 || process.is_outside_pods) return std::nullopt;
  return shares.front().holder.pod;
}

Result<PodByUid> read_pod_uids(const std::string& directory) {
  PodByUid pods;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    if (auto pod = parse_log_directory(at->path().filename().string())) pods[pod->uid] = std::move(pod->pod);
  }
  if (error) return fail(errno_error("cannot be read", error.value(), directory));
  return pods;
}

CgroupsByPid read_cgroups(const GpuSample& gpu, const std::string& proc) {
  CgroupsByPid found;
  std::optional<Result<std::string>> own;  // read for the first process: an idle GPU costs nothing
  const auto is_own = [&](const std::string& cgroups) {
    if (!own) own = read_file(proc + "/self/cgroup", kMaxCgroupBytes);
    return *own && cgroups == **own;
  };
  const auto read = [&](const std::vector<ProcessSample>& processes) {
    for (const auto& process : processes) {
      if (found.contains(process.pid)) continue;
      const auto cgroups = read_file(proc + "/" + std::to_string(process.pid) + "/cgroup", kMaxCgroupBytes);
      if (!cgroups) continue;
      auto uids = pod_uids(*cgroups);
      if (!uids.empty() || !is_own(*cgroups)) found[process.pid] = std::move(uids);
    }
  };
  read(gpu.processes);
  for (const auto& instance : gpu.instances) {
    for (const auto& device : instance.devices) read(device.processes);
  }
  return found;
}

void read_process_names(GpuSample& gpu, const std::string& proc) {
  constexpr std::size_t kMostNameBytes = 64;
  const auto read = [&](std::vector<ProcessSample>& processes) {
    for (auto& process : processes) {
      const auto name = read_file(proc + "/" + std::to_string(process.pid) + "/comm", kMostNameBytes);
      if (name) process.name = text::trim(*name);
    }
  };
  read(gpu.processes);
  for (auto& instance : gpu.instances) {
    for (auto& device : instance.devices) read(device.processes);
  }
}

void match_processes_to_pods(const CgroupsByPid& cgroups, const PodByUid& known, PodByPid& pods) {
  for (const auto& [pid, uids] : cgroups) {
    if (auto pod = find_pod(uids, known)) pods[pid] = std::move(*pod);
  }
}

void mark_processes_outside_pods(const CgroupsByPid& cgroups, GpuSample& gpu) {
  for (auto& process : gpu.processes) {
    const auto found = cgroups.find(process.pid);
    process.is_outside_pods = found != cgroups.end() && found->second.empty();
  }
}

std::vector<ProcessSample> processes_outside_pods(const GpuSample& gpu) {
  std::vector<ProcessSample> found;
  for (const auto& process : gpu.processes) {
    if (process.is_outside_pods && process.memory && process.memory->value >= kWorkMemory.value)
      found.push_back(process);
  }
  return found;
}

}  // namespace gpulet::metrics
