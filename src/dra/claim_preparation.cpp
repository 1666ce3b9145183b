#include "dra/claim_preparation.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "base/quantity.h"
#include "base/text.h"

namespace gpulet::dra {
namespace {

constexpr unsigned kAllThreads = 100;
constexpr std::string_view kClaimPipes = "/tmp/nvidia-mps";  // in a container
constexpr std::size_t kMaxNamedClaims = 8;                   // in a reason

std::string claim_text(const ResourceClaim& claim) { return claim.name_space + "/" + claim.name; }

// Of the claim's CDI document. A claim may have several shares of a GPU.
std::string cdi_device_name(const ClaimRecord& record, const RecordedDevice& device) {
  return record.uid + "-" + device.device + (device.share_id.empty() ? "" : "-" + device.share_id);
}

std::string device_text(const AllocationResult& result) { return "device \"" + result.device + "\""; }

Status check_identity(const ResourceClaim& claim, const std::string& uid, const PreparationInput& input) {
  if (claim.uid != uid) {
    return fail(Code::kFailedPrecondition,
                "the claim was deleted and created again: expected the uid " + uid + ", found " + claim.uid);
  }
  if (!claim.allocated) return fail(Code::kFailedPrecondition, "the claim has no allocation");
  for (const auto& result : claim.results) {
    if (result.pool != input.pool_name) {
      return fail(Code::kFailedPrecondition, device_text(result) + " is of the pool \"" + result.pool +
                                                 "\", expected this node's pool \"" + input.pool_name + "\"");
    }
  }
  return {};
}

// The name may mean another GPU than the one that was allocated: minors change.
Status check_uuid(const AllocationResult& result, const DeviceUuid& found, const std::string& expected) {
  if (expected.empty() || expected == found.str()) return {};
  return fail(Code::kFailedPrecondition, device_text(result) + " means another GPU now: expected " +
                                             expected + ", found " + found.str());
}

const RecordedDevice* recorded_device(const PreparationInput& input, const std::string& uid,
                                      const AllocationResult& result) {
  const auto record = input.records->find(uid);
  if (record == input.records->end()) return nullptr;
  const auto& devices = record->second.devices;
  const auto found = std::ranges::find_if(devices, [&](const RecordedDevice& device) {
    return device.device == result.device && device.pool == result.pool && device.share_id == result.share_id;
  });
  return found == devices.end() ? nullptr : &*found;
}

// A partition's name stands for its GPU, as its MIG device comes and goes.
Status check_recorded(const AllocationResult& result, const PoolDevice& offered,
                      const RecordedDevice* known) {
  if (known == nullptr) return {};
  if (known->partition) return check_uuid(result, offered.gpu_uuid, known->partition->gpu.str());
  return check_uuid(result, offered.uuid, known->uuid.str());
}

Status check_health(const AllocationResult& result, const PoolDevice& offered) {
  const auto& taints = offered.device.taints;
  if (std::ranges::find(taints, kLostTaint, &DeviceTaint::key) == taints.end()) return {};
  return fail(Code::kDeviceLost, device_text(result) + " (" + offered.uuid.str() +
                                     ") cannot be used: the GPU is lost (taint " + std::string(kLostTaint) +
                                     ")");
}

Status check_holder(const AllocationResult& result, const PoolDevice& offered, const std::string& uid,
                    const PreparationInput& input) {
  if (result.admin_access) return {};
  const bool gets_share = !result.share_id.empty();
  const auto* holder = find_holder(*input.records, offered.uuid, uid, gets_share);
  if (holder == nullptr) holder = find_holder(*input.records, offered.gpu_uuid, uid, gets_share);
  if (holder == nullptr && offered.partition)
    holder = find_partition_holder(*input.records, offered.gpu_uuid, *offered.partition, uid);
  if (holder == nullptr) return {};
  const std::string name = holder->name.empty() ? "" : holder->name_space + "/" + holder->name + " ";
  return fail(Code::kUnavailable,
              device_text(result) + " is still held by the claim " + name + "(uid " + holder->uid + ")");
}

// The rule that allowed it may be another one now, or not be known yet.
Status check_share_allowed(const AllocationResult& result, const PoolDevice& offered, const std::string& uid,
                           const PreparationInput& input) {
  if (result.admin_access || result.share_id.empty() || offered.device.allows_multiple ||
      recorded_device(input, uid, result) != nullptr) {
    return {};
  }
  return fail(Code::kUnavailable, device_text(result) +
                                      " was allocated as a share, and no partition rule has "
                                      "consumableShares for " +
                                      offered.uuid.str());
}

Status check_withheld(const AllocationResult& result, const PoolDevice& offered, const std::string& uid,
                      const PreparationInput& input) {
  if (result.admin_access || recorded_device(input, uid, result) != nullptr) return {};
  const auto reason = input.withheld.find(offered.gpu_uuid);
  if (reason == input.withheld.end()) return {};
  return fail(Code::kUnavailable,
              device_text(result) + " cannot be prepared: " + offered.gpu_uuid.str() + " " + reason->second);
}

Result<const PoolDevice*> find_device(const AllocationResult& result, const std::string& uid,
                                      const PreparationInput& input) {
  const auto* offered = input.pool->find(result.device);
  if (offered == nullptr) {
    const auto taken = input.pool->taken.find(result.device);
    return fail(Code::kUnavailable, device_text(result) + " is not available on this node now" +
                                        (taken == input.pool->taken.end() ? "" : ": " + taken->second));
  }
  const auto shown = input.shown_uuids.find(result.device);
  if (shown != input.shown_uuids.end()) {
    GPULET_TRY(check_uuid(result, offered->partition ? offered->gpu_uuid : offered->uuid, shown->second));
  }
  GPULET_TRY(check_recorded(result, *offered, recorded_device(input, uid, result)));
  GPULET_TRY(check_health(result, *offered));
  GPULET_TRY(check_share_allowed(result, *offered, uid, input));
  GPULET_TRY(check_holder(result, *offered, uid, input));
  GPULET_TRY(check_withheld(result, *offered, uid, input));
  return offered;
}

// A partition as it is recorded already, else not made yet. An admin's access makes nothing.
Result<RecordedDevice> record_device(const AllocationResult& result, const PoolDevice& offered,
                                     const RecordedDevice* known) {
  RecordedDevice device{std::string(result.main_request()),
                        result.pool,
                        result.device,
                        offered.uuid,
                        result.admin_access,
                        result.share_id};
  if (device.is_share()) {
    for (const auto& [capacity, amount] : result.consumed_capacity) {
      if (offered.device.capacity.contains(capacity)) device.consumed.emplace(capacity, amount);
    }
  }
  if (known != nullptr && known->partition) {
    device.uuid = known->uuid;
    device.partition = known->partition;
  } else if (offered.partition && !result.admin_access) {
    device.uuid = {};
    device.partition = {offered.gpu_uuid, *offered.partition};
  } else if (offered.partition && offered.uuid.empty()) {
    return fail(Code::kFailedPrecondition,
                device_text(result) + ": there is no such MIG device, and an admin's access makes none");
  }
  return device;
}

// The scheduler counts too, but not what is left of a claim that is deleted, and it trusts this node's rules
// of the time when it allocated.
Status check_capacity(const ClaimRecord& record, const PoolDevice& offered,
                      const std::map<std::string, ClaimRecord>& records) {
  for (const auto& [capacity, total] : offered.device.capacity) {
    auto use = find_share_use(records, offered.uuid, capacity, total, record.uid);
    const auto others = use;
    add_share_use(record, offered.uuid, capacity, total, use);
    if (use.sum <= total) continue;
    return fail(Code::kUnavailable,
                "device \"" + offered.device.name + "\" has " + format_binary_quantity(total) + " of " +
                    capacity + ", of which the claim needs " + format_binary_quantity(use.sum - others.sum) +
                    " and others hold " + format_binary_quantity(others.sum) + ": " +
                    (others.claims.empty() ? "none" : text::join_limited(others.claims, kMaxNamedClaims)));
  }
  return {};
}

// Of the shares that the claim does not have yet: a rule that leaves less does not end what runs.
Status check_shares(const ClaimRecord& record, const ResourceClaim& claim, const PreparationInput& input) {
  std::set<DeviceUuid> checked;
  for (std::size_t i = 0; i < record.devices.size(); ++i) {
    const auto& device = record.devices[i];
    if (!device.is_share()) continue;
    const bool is_whole_too = std::ranges::any_of(record.devices, [&](const RecordedDevice& other) {
      return other.uuid == device.uuid && !other.admin_access && other.share_id.empty();
    });
    if (is_whole_too) {
      return fail(Code::kInvalidArgument,
                  device_text(claim.results[i]) + " is allocated to the claim as a share and as a whole");
    }
    if (recorded_device(input, record.uid, claim.results[i]) != nullptr) continue;
    const auto* offered = input.pool->find(device.device);
    if (offered == nullptr || !checked.insert(device.uuid).second) continue;
    GPULET_TRY(check_capacity(record, *offered, *input.records));
  }
  return {};
}

// The devices that one config shares by MPS.
struct MpsGroup {
  const ConfigEntry* entry;
  const MpsSettings* settings;
  bool is_mig;
  std::vector<DeviceUuid> devices;
};

// Settings that cannot be applied are errors. An admin's access applies no settings, and resets none.
Result<std::vector<MpsGroup>> find_mps_groups(const ResourceClaim& claim, const ClaimRecord& record,
                                              const std::vector<ResolvedConfig>& configs) {
  std::vector<MpsGroup> groups;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const auto& result = claim.results[i];
    const auto* sharing = sharing_of(configs[i].config);
    if (result.admin_access || sharing == nullptr) continue;
    if (const auto checked = check_sharing(*sharing); !checked) {
      return fail(checked.error().code(), device_text(result) + ": " + checked.error().message());
    }
    const auto* settings = std::get_if<MpsSettings>(sharing);
    if (settings == nullptr) continue;
    if (!result.share_id.empty()) {
      return fail(Code::kUnsupported, device_text(result) + ": MPS for a device that other claims share");
    }
    if (record.devices[i].partition) {
      return fail(Code::kUnsupported, device_text(result) + ": MPS on a MIG device that is made for a claim");
    }
    const auto& uuid = record.devices[i].uuid;
    const auto has_it = [&](const MpsGroup& one) { return std::ranges::count(one.devices, uuid) != 0; };
    if (std::ranges::any_of(groups, has_it)) continue;
    auto group = std::ranges::find(groups, configs[i].entry, &MpsGroup::entry);
    if (group == groups.end()) {
      const bool is_mig = std::holds_alternative<MigDeviceConfig>(configs[i].config);
      group = groups.insert(group, {configs[i].entry, settings, is_mig, {}});
    }
    group->devices.push_back(uuid);
  }
  return groups;
}

// A CUDA process uses only one MIG device, so each has a daemon of its own.
Result<std::vector<RecordedDaemon>> plan_claim_daemons(const std::vector<MpsGroup>& groups) {
  std::vector<RecordedDaemon> daemons;
  for (const auto& group : groups) {
    GPULET_TRY_ASSIGN(const auto limits, pinned_memory_limits(*group.settings, group.devices));
    for (const auto& uuid : group.devices) {
      if (group.is_mig || uuid == group.devices.front()) {
        daemons.push_back({{}, group.settings->active_thread_percentage.value_or(kAllThreads)});
      }
      auto& daemon = daemons.back();
      daemon.devices.push_back(uuid);
      const auto limit = limits.find(uuid);
      if (limit != limits.end()) daemon.limits_mib[uuid] = limit->second.value / mebibytes(1).value;
    }
  }
  return daemons;
}

// Source: NVIDIA's DRA driver, cmd/gpu-kubelet-plugin/sharing.go.
void add_daemon_edits(cdi::ContainerEdits& edits, const std::string& mps_root, const std::string& daemon) {
  const std::vector<std::string> options = {"rw", "nosuid", "nodev", "bind"};
  edits.env.emplace_back("CUDA_MPS_PIPE_DIRECTORY=" + std::string(kClaimPipes));
  edits.mounts.push_back({mps::pipe_directory(mps_root, daemon), std::string(kClaimPipes), options});
  edits.mounts.push_back({mps::client_shm_directory(mps_root, daemon), "/dev/shm", options});
}

}  // namespace

Result<ClaimRecord> plan_preparation(const ResourceClaim& claim, const std::string& uid,
                                     const PreparationInput& input) {
  const auto plan = [&]() -> Result<ClaimRecord> {
    GPULET_TRY(check_identity(claim, uid, input));
    ClaimRecord record{uid, claim.name_space, claim.name, {}};
    std::vector<DeviceType> types;
    for (const auto& result : claim.results) {
      GPULET_TRY_ASSIGN(const PoolDevice* offered, find_device(result, uid, input));
      types.push_back(offered->type);
      GPULET_TRY_ASSIGN(RecordedDevice device,
                        record_device(result, *offered, recorded_device(input, uid, result)));
      record.devices.push_back(std::move(device));
    }
    GPULET_TRY(check_shares(record, claim, input));
    GPULET_TRY_ASSIGN(const auto configs, resolve_configs(claim, types, input.gates));
    GPULET_TRY_ASSIGN(const auto groups, find_mps_groups(claim, record, configs));
    GPULET_TRY_ASSIGN(record.daemons, plan_claim_daemons(groups));
    return record;
  };
  auto record = plan();
  if (!record) {
    return fail(Error(record.error().code(), record.error().message(), "claim " + claim_text(claim)));
  }
  return record;
}

std::string claim_cdi_id(const ClaimRecord& record, const RecordedDevice& device) {
  return cdi::qualified_name(kClaimCdiKind, cdi_device_name(record, device));
}

std::string claim_spec_file_name(const std::string& uid) {
  return std::string(kClaimCdiVendor) + "-claim_" + uid + ".json";
}

std::vector<mps::DaemonSpec> claim_daemons(const ClaimRecord& record) {
  std::vector<mps::DaemonSpec> specs;
  for (const auto& daemon : record.daemons) {
    mps::DaemonSpec spec;
    spec.name = mps::claim_daemon_name(record.uid, specs.size());
    spec.resources = {ResourceName(std::string(kDriverName))};
    spec.visible_devices = daemon.devices;
    spec.thread_percentage = daemon.thread_percentage;
    for (unsigned i = 0; i < daemon.devices.size(); ++i) {
      const auto& uuid = daemon.devices[i];
      spec.devices.push_back({uuid, 0, uuid.str().starts_with("MIG-"), {}});
      const auto limit = daemon.limits_mib.find(uuid);
      if (limit != daemon.limits_mib.end()) spec.memory_limits.push_back({i, limit->second});
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

Result<cdi::Spec> make_claim_spec(const ClaimRecord& record, const cdi::Spec& base,
                                  const std::string& mps_root) {
  const auto daemons = claim_daemons(record);
  cdi::Spec spec;
  spec.kind = kClaimCdiKind;
  spec.edits = base.edits;
  // The base may set it as well, for its own devices.
  std::erase_if(spec.edits.env,
                [](const std::string& entry) { return entry.starts_with("NVIDIA_VISIBLE_DEVICES="); });
  for (const auto& device : record.devices) {
    const auto found = std::ranges::find(base.devices, device.uuid.str(), &cdi::Device::name);
    if (found == base.devices.end()) {
      return fail(Code::kUnavailable, "the CDI document of this node has no device " + device.uuid.str(),
                  "claim " + record.name_space + "/" + record.name);
    }
    const std::string name = cdi_device_name(record, device);
    if (std::ranges::find(spec.devices, name, &cdi::Device::name) != spec.devices.end()) continue;
    auto& added = spec.devices.emplace_back(cdi::Device{.name = name, .edits = found->edits});
    const auto* daemon = mps::find_daemon_of(daemons, device.uuid);
    if (daemon != nullptr) add_daemon_edits(added.edits, mps_root, daemon->name);
  }
  spec.edits.env.emplace_back("NVIDIA_VISIBLE_DEVICES=void");
  cdi::canonicalize_spec(spec);
  return spec;
}

}  // namespace gpulet::dra
