#include "dra/claim_preparation.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace gpulet::dra {
namespace {

std::string claim_text(const ResourceClaim& claim) { return claim.name_space + "/" + claim.name; }

// Of the claim's CDI document.
std::string cdi_device_name(const ClaimRecord& record, const RecordedDevice& device) {
  return record.uid + "-" + device.device;
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

std::string recorded_uuid(const PreparationInput& input, const std::string& uid,
                          const AllocationResult& result) {
  const auto record = input.records->find(uid);
  if (record == input.records->end()) return "";
  for (const auto& device : record->second.devices) {
    if (device.device == result.device && device.pool == result.pool) return device.uuid.str();
  }
  return "";
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
  if (result.admin_access || !result.share_id.empty()) return {};
  const auto* holder = find_holder(*input.records, offered.uuid, uid);
  if (holder == nullptr) holder = find_holder(*input.records, offered.gpu_uuid, uid);
  if (holder == nullptr) return {};
  const std::string name = holder->name.empty() ? "" : holder->name_space + "/" + holder->name + " ";
  return fail(Code::kUnavailable,
              device_text(result) + " is still held by the claim " + name + "(uid " + holder->uid + ")");
}

Status check_withheld(const AllocationResult& result, const PoolDevice& offered, const std::string& uid,
                      const PreparationInput& input) {
  if (result.admin_access || !recorded_uuid(input, uid, result).empty()) return {};
  const auto reason = input.withheld.find(offered.gpu_uuid);
  if (reason == input.withheld.end()) return {};
  return fail(Code::kUnavailable,
              device_text(result) + " cannot be prepared: " + offered.gpu_uuid.str() + " " + reason->second);
}

Result<const PoolDevice*> find_device(const AllocationResult& result, const std::string& uid,
                                      const PreparationInput& input) {
  const auto* offered = input.pool->find(result.device);
  if (offered == nullptr) {
    return fail(Code::kUnavailable, device_text(result) + " is not available on this node now");
  }
  const auto shown = input.shown_uuids.find(result.device);
  if (shown != input.shown_uuids.end()) GPULET_TRY(check_uuid(result, offered->uuid, shown->second));
  GPULET_TRY(check_uuid(result, offered->uuid, recorded_uuid(input, uid, result)));
  GPULET_TRY(check_health(result, *offered));
  GPULET_TRY(check_holder(result, *offered, uid, input));
  GPULET_TRY(check_withheld(result, *offered, uid, input));
  return offered;
}

// An admin's access applies no settings, and resets none.
Status check_settings(const AllocationResult& result, const DeviceConfig& config) {
  if (result.admin_access) return {};
  const auto& sharing = std::holds_alternative<GpuConfig>(config) ? std::get<GpuConfig>(config).sharing
                                                                  : std::get<MigDeviceConfig>(config).sharing;
  const auto* slicing = std::get_if<TimeSlicing>(&sharing);
  const bool is_default = std::holds_alternative<std::monostate>(sharing) ||
                          (slicing != nullptr && slicing->interval == TimeSliceInterval::kDefault) ||
                          (slicing != nullptr && std::holds_alternative<MigDeviceConfig>(config));
  if (is_default) return {};
  return fail(Code::kUnsupported,
              device_text(result) + ": " +
                  (slicing != nullptr ? "the time-slice interval " + std::string(enum_name(slicing->interval))
                                      : std::string("MPS")) +
                  " by the config of a claim is not supported, expected the interval Default");
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
      record.devices.push_back({std::string(result.main_request()), result.pool, result.device, offered->uuid,
                                result.admin_access, result.share_id});
    }
    GPULET_TRY_ASSIGN(const auto configs, resolve_configs(claim, types, input.gates));
    for (std::size_t i = 0; i < configs.size(); ++i) {
      GPULET_TRY(check_settings(claim.results[i], configs[i]));
    }
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

Result<cdi::Spec> make_claim_spec(const ClaimRecord& record, const cdi::Spec& base) {
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
    spec.devices.push_back({.name = name, .edits = found->edits});
  }
  spec.edits.env.emplace_back("NVIDIA_VISIBLE_DEVICES=void");
  cdi::canonicalize_spec(spec);
  return spec;
}

}  // namespace gpulet::dra
