#include "mps/plan.h"

#include <algorithm>
#include <set>

#include "base/device_id.h"
#include "base/text.h"

namespace gpulet::mps {
namespace {

using partition::Device;
using partition::Resource;

constexpr std::string_view kClaimDaemons = "claims/";
// Source: NVIDIA, "MPS v3 Interface".
constexpr unsigned kFirstBranchWithNamespaces = 615;

std::uint64_t part_of(Bytes memory, unsigned percent) { return (memory.value * percent / 100) >> 20; }

// All devices that one daemon serves, and how they are shared.
struct Group {
  std::set<ResourceName> resources;
  std::vector<const Device*> devices;
  bool may_have_namespaces = true;
  bool has_sm_partitions = false;
};

SharedDevice shared_device(const Device& device, const inventory::Snapshot& snapshot) {
  const auto& gpu = snapshot.gpus[device.gpu];
  if (device.mig) return {uuid_of_device(device.id), gpu.index, true, gpu.mig_devices[*device.mig].memory};
  return {uuid_of_device(device.id), gpu.index, false, gpu.memory};
}

// Whether the driver's own numbers work: the daemon sees every GPU, and CUDA, which sorts by speed,
// numbers them as the driver does.
bool may_see_all(const DaemonSpec& spec, const inventory::Snapshot& snapshot) {
  return spec.devices.size() == snapshot.gpus.size() &&
         std::ranges::all_of(snapshot.gpus, [&](const inventory::Gpu& gpu) {
           return !gpu.mig_enabled && gpu.model == snapshot.gpus.front().model;
         });
}

void set_limits(DaemonSpec& spec, const Group& group) {
  bool by_rule = false;
  unsigned most_threads = 0;
  for (const Device* device : group.devices) {
    if (!device->share) continue;
    by_rule = true;
    most_threads = std::max(most_threads, device->share->threads);
  }
  for (std::size_t i = 0; i < spec.devices.size(); ++i) {
    const auto& shared = spec.devices[i];
    std::uint64_t shares = 0;
    unsigned most_memory = 0;
    bool is_limited = true;
    for (const Device* device : group.devices) {
      if (uuid_of_device(device->id) != shared.uuid) continue;
      ++shares;
      is_limited = is_limited && device->has_memory_limit;
      if (device->share) most_memory = std::max(most_memory, device->share->memory);
    }
    if (shared.memory.value == 0 || !is_limited) continue;
    const auto ordinal = spec.visible_devices.empty() ? shared.gpu : static_cast<unsigned>(i);
    spec.memory_limits.push_back({ordinal, most_memory != 0 ? part_of(shared.memory, most_memory)
                                                            : (shared.memory.value / shares) >> 20});
  }
  spec.thread_percentage =
      by_rule ? most_threads : static_cast<unsigned>(100 / (group.devices.size() / spec.devices.size()));
}

NamespaceLimits default_limits(const Device& share, const SharedDevice& shared, const Group& group) {
  const auto shares = static_cast<unsigned>(std::ranges::count_if(
      group.devices, [&](const Device* device) { return uuid_of_device(device->id) == shared.uuid; }));
  const auto threads = share.share ? share.share->threads : 100 / shares;
  // A limit that was set cannot be taken back: the whole memory is none.
  auto memory = shared.memory.value >> 20;
  if (share.has_memory_limit)
    memory = share.share ? part_of(shared.memory, share.share->memory) : (shared.memory.value / shares) >> 20;
  return {std::max(threads, 1u), memory};
}

void set_namespaces(DaemonSpec& spec, const Group& group) {
  spec.protocol = kProtocolWithNamespaces;
  spec.visible_devices.clear();
  spec.memory_limits.clear();
  for (const Device* device : group.devices) {
    const auto uuid = uuid_of_device(device->id);
    const auto shared = std::ranges::find(spec.devices, uuid, &SharedDevice::uuid);
    spec.namespaces.push_back({namespace_name(device->id), uuid, default_limits(*device, *shared, group)});
  }
}

DaemonSpec spec_of(const std::string& name, const Group& group, const inventory::Snapshot& snapshot) {
  DaemonSpec spec;
  spec.name = name;
  spec.resources.assign(group.resources.begin(), group.resources.end());
  for (const Device* device : group.devices) {
    auto shared = shared_device(*device, snapshot);
    if (std::ranges::count(spec.devices, shared) == 0) spec.devices.push_back(std::move(shared));
  }
  std::ranges::sort(spec.devices, {}, &SharedDevice::gpu);
  if (!may_see_all(spec, snapshot)) {
    for (const auto& device : spec.devices) spec.visible_devices.push_back(device.uuid);
  }
  set_limits(spec, group);
  if (group.has_sm_partitions) {
    spec.thread_percentage = 100;
    for (const Device* device : group.devices)
      spec.sm_partitions.push_back({device->id, uuid_of_device(device->id)});
  } else if (group.may_have_namespaces) {
    set_namespaces(spec, group);
  }
  return spec;
}

bool has_branch_with_namespaces(const std::string& version) {
  const auto branch = text::parse_unsigned(std::string_view(version).substr(0, version.find('.')));
  return branch && *branch >= kFirstBranchWithNamespaces;
}

std::string namespace_directory(const std::string& root, const DaemonSpec& spec, const std::string& name) {
  return pipe_directory(root, spec.name, spec.protocol) + "/" + std::string(kServerName) + "/" + name;
}

}  // namespace

std::string namespace_name(const DeviceId& share) {
  constexpr std::size_t kDigits = 16;
  const auto uuid = uuid_of_device(share).str();
  std::string name;
  for (const char c : text::lower(uuid.substr(uuid.find('-') + 1))) {
    if (((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) && name.size() < kDigits) name += c;
  }
  const auto replica = share.str().rfind("::");
  return name + "_" + (replica == std::string::npos ? "whole" : share.str().substr(replica + 2));
}

std::string why_no_namespaces(const inventory::Snapshot& snapshot, const config::Config& config,
                              const std::string& program_problem) {
  if (!config.gpulet.fraction.driver_limits)
    return "gpulet.fraction.driverLimits is false: no hook asks for a container's limits";
  if (!config.gpulet.mps.manage) return "gpulet.mps.manage is false: another program runs the daemons";
  const auto& version = snapshot.driver.version;
  if (!has_branch_with_namespaces(version))
    return "the driver is " + (version.empty() ? "not known" : version) + ": MPS protocol 3 needs " +
           std::to_string(kFirstBranchWithNamespaces) + " or later";
  return program_problem;
}

std::vector<DaemonSpec> plan_daemons(const std::vector<Resource>& resources,
                                     const inventory::Snapshot& snapshot, bool has_namespaces) {
  std::map<std::string, Group> groups;
  for (const auto& resource : resources) {
    if (resource.sharing != config::SharingStrategy::kMps) continue;
    const std::string& name = resource.mps_daemon.empty() ? resource.name.str() : resource.mps_daemon;
    for (const auto& device : resource.devices) {
      // Devices that cannot be shared are offered unshared under the same name.
      if (!device.replica) continue;
      auto& group = groups[device.mig ? name + "/" + uuid_of_device(device.id).str() : name];
      group.resources.insert(resource.name);
      group.devices.push_back(&device);
      group.may_have_namespaces =
          group.may_have_namespaces && has_namespaces && resource.is_mps_by_rule && !device.mig;
      group.has_sm_partitions = group.has_sm_partitions || resource.has_sm_partitions;
    }
  }
  std::vector<DaemonSpec> specs;
  for (const auto& [name, group] : groups) specs.push_back(spec_of(name, group, snapshot));
  return specs;
}

const DaemonSpec* find_daemon_spec(std::span<const DaemonSpec> specs, const ResourceName& resource,
                                   const DeviceId& device) {
  const auto uuid = uuid_of_device(device);
  const auto found = std::ranges::find_if(specs, [&](const DaemonSpec& spec) {
    return std::ranges::count(spec.resources, resource) != 0 &&
           std::ranges::any_of(spec.devices, [&](const SharedDevice& shared) { return shared.uuid == uuid; });
  });
  return found == specs.end() ? nullptr : &*found;
}

std::optional<HeldNamespace> find_namespace(const DaemonSpec& spec, std::span<const DeviceId> ids) {
  std::optional<HeldNamespace> found;
  std::map<DeviceUuid, HeldNamespace> by_gpu;
  for (const auto& space : spec.namespaces) {
    if (std::ranges::none_of(ids, [&](const DeviceId& id) { return namespace_name(id) == space.name; }))
      continue;
    if (!found) found = HeldNamespace{space.name, {}, 0};
    auto& sum = by_gpu[space.device];
    sum.limits.threads = (sum.shares++ == 0 ? 0 : sum.limits.threads) + space.limits.threads;
    sum.limits.mebibytes += space.limits.mebibytes;
  }
  for (const auto& [gpu, sum] : by_gpu) {
    const auto shared = std::ranges::find(spec.devices, gpu, &SharedDevice::uuid);
    const auto whole = shared == spec.devices.end() ? 0 : shared->memory.value >> 20;
    const auto memory = std::min(sum.limits.mebibytes, whole);
    found->shares = found->shares == 0 ? sum.shares : std::min(found->shares, sum.shares);
    found->limits.threads = std::min(found->limits.threads, sum.limits.threads);
    if (found->limits.mebibytes == 0 || (memory != 0 && memory < found->limits.mebibytes))
      found->limits.mebibytes = memory;
  }
  return found;
}

std::string client_pipe_directory(const std::string& root, const DaemonSpec& spec,
                                  std::span<const Device> held) {
  std::vector<DeviceId> ids;
  for (const auto& device : held) ids.push_back(device.id);
  const auto found = find_namespace(spec, ids);
  return found ? namespace_directory(root, spec, found->name)
               : pipe_directory(root, spec.name, spec.protocol);
}

std::map<std::string, std::string> client_environment(const DaemonSpec& spec, std::span<const Device> held) {
  std::map<std::string, std::string> environment{
      {"CUDA_MPS_PIPE_DIRECTORY", client_pipe_directory(std::string(kContainerRoot), spec, held)}};
  if (spec.protocol == kProtocolWithNamespaces) return environment;
  if (!spec.sm_partitions.empty()) {
    const auto of_share = std::ranges::find_if(spec.sm_partitions, [&](const SmPartition& one) {
      return !held.empty() && one.share == held.front().id;
    });
    if (of_share != spec.sm_partitions.end() && !of_share->id.empty())
      environment["CUDA_MPS_SM_PARTITION"] = of_share->id;
    return environment;
  }
  unsigned most_threads = 0;
  std::vector<std::string> memory;
  unsigned ordinal = 0;
  for (const auto& shared : spec.devices) {
    unsigned threads = 0, percent = 0;
    bool holds = false;
    for (const auto& device : held) {
      if (uuid_of_device(device.id) != shared.uuid) continue;
      holds = true;
      if (!device.share) continue;
      threads += device.share->threads;
      percent += device.share->memory;
    }
    if (!holds) continue;
    most_threads = std::max(most_threads, std::min(threads, 100u));
    if (percent != 0 && shared.memory.value != 0) {
      memory.push_back(std::to_string(ordinal) + "=" +
                       std::to_string(part_of(shared.memory, std::min(percent, 100u))) + "M");
    }
    ++ordinal;
  }
  if (most_threads != 0) environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = std::to_string(most_threads);
  if (!memory.empty()) environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = text::join(memory, ",");
  return environment;
}

std::string claim_daemon_name(const std::string& uid, std::size_t number) {
  return std::string(kClaimDaemons) + uid + (number == 0 ? "" : "-" + std::to_string(number));
}

bool is_claim_daemon(std::string_view name) { return name.starts_with(kClaimDaemons); }

std::vector<DaemonSpec> without_held_devices(std::vector<DaemonSpec> specs,
                                             std::span<const DaemonSpec> held) {
  std::erase_if(specs, [&](const DaemonSpec& spec) {
    return std::ranges::any_of(spec.devices, [&](const SharedDevice& device) {
      return find_daemon_of(held, device.uuid) != nullptr;
    });
  });
  return specs;
}

const DaemonSpec* find_daemon_of(std::span<const DaemonSpec> specs, const DeviceUuid& device) {
  const auto found = std::ranges::find_if(specs, [&](const DaemonSpec& spec) {
    return std::ranges::find(spec.devices, device, &SharedDevice::uuid) != spec.devices.end();
  });
  return found == specs.end() ? nullptr : &*found;
}

std::string pipe_directory(const std::string& root, const std::string& name, unsigned protocol) {
  return root + "/" + name + (protocol == kProtocolWithNamespaces ? "/pipe3" : "/pipe");
}
std::string longest_socket_path(const std::string& root, const DaemonSpec& spec) {
  std::string longest;
  for (const auto& longer_root : {root, std::string(kContainerRoot)}) {
    for (const auto& space : spec.namespaces) {
      auto path = namespace_directory(longer_root, spec, space.name) + "/control";
      if (path.size() > longest.size()) longest = std::move(path);
    }
  }
  return longest;
}
std::string log_directory(const std::string& root, const std::string& name) {
  return root + "/" + name + "/log";
}
std::string started_file(const std::string& root, const std::string& name) {
  return root + "/" + name + "/.started";
}
std::string ready_file(const std::string& root) { return root + "/.ready"; }
std::string shm_directory(const std::string& root) { return root + "/shm"; }
std::string claim_shm_directory(const std::string& root) { return root + "/claim-shm"; }
std::string client_shm_directory(const std::string& root, const std::string& name) {
  if (!is_claim_daemon(name)) return shm_directory(root);
  return claim_shm_directory(root) + name.substr(name.find('/'));
}

}  // namespace gpulet::mps
