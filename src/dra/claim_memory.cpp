#include "dra/claim_memory.h"

#include <algorithm>
#include <set>

#include "dra/device.h"

namespace gpulet::dra {
namespace {

bool names_request(std::span<const k8s::ContainerClaim> claims, const ClaimRecord& record,
                   const RecordedDevice& device) {
  return std::ranges::any_of(claims, [&](const k8s::ContainerClaim& one) {
    return one.claim == record.name && (one.request.empty() || one.request == device.request);
  });
}

void add_claimed_device(const ClaimRecord& record, const RecordedDevice& device, bool is_first,
                        ClaimedMemory& memory) {
  memory.claim = claim_text(record);
  const auto consumed = device.consumed.find(kMemoryCapacity);
  const bool is_limited = device.is_share() && consumed != device.consumed.end() && consumed->second != 0;
  if (!is_limited) {
    memory.limit = {};
    memory.shares.clear();
  } else if (is_first || memory.limit != Bytes{}) {
    memory.limit.value += consumed->second;
    memory.shares.insert(record.uid + "/" + device.device + "/" + device.share_id);
  }
  for (const auto& daemon : record.daemons) {
    if (device.admin_access || std::ranges::count(daemon.devices, device.uuid) == 0) continue;
    memory.has_mps = true;
    const auto limit = daemon.limits_mib.find(device.uuid);
    if (limit != daemon.limits_mib.end()) memory.mps_process_mib = limit->second;
  }
}

}  // namespace

Result<std::map<DeviceUuid, ClaimedMemory>> claimed_memory(const std::map<std::string, ClaimRecord>& records,
                                                           const std::string& name_space,
                                                           std::span<const k8s::ContainerClaim> claims) {
  std::map<DeviceUuid, ClaimedMemory> memory;
  std::set<std::string> names;
  for (const auto& [uid, record] : records) {
    if (record.ending || record.name.empty() || record.name_space != name_space) continue;
    bool is_named = false;
    for (const auto& device : record.devices) {
      if (!names_request(claims, record, device)) continue;
      is_named = true;
      if (device.uuid.empty()) continue;
      const bool is_first = !memory.contains(device.uuid);
      add_claimed_device(record, device, is_first, memory[device.uuid]);
    }
    if (is_named && !names.insert(record.name).second) {
      return fail(Code::kFailedPrecondition,
                  "there are two claims " + claim_text(record) + "; the older one must be unprepared first");
    }
  }
  for (const auto& [uid, record] : records) {
    if (record.ending || !record.name.empty()) continue;
    for (const auto& device : record.devices)
      memory.try_emplace(device.uuid, ClaimedMemory{.claim = claim_text(record)});
  }
  return memory;
}

Bytes requested_limit(const fraction::FractionRequest& request, Bytes gpu_memory, unsigned shares) {
  if (request.memory_limit.is_zero() || gpu_memory == Bytes{}) return {};
  const auto whole = gpu_memory.mebibytes();
  return mebibytes(std::min(request.memory_limit.mib_of(whole), whole) * shares);
}

Bytes least_limit(Bytes one, Bytes other) {
  if (one == Bytes{} || other == Bytes{}) return std::max(one, other);
  return std::min(one, other);
}

std::string common_share_text(const std::string& claim) {
  return "other containers use its share of the claim " + claim + " too, and together more than the share";
}

const RecordedDaemon* find_claim_daemon(const std::map<std::string, ClaimRecord>& records,
                                        const DeviceUuid& device) {
  for (const auto& [uid, record] : records) {
    if (record.ending) continue;
    for (const auto& daemon : record.daemons) {
      if (std::ranges::count(daemon.devices, device) != 0) return &daemon;
    }
  }
  return nullptr;
}

}  // namespace gpulet::dra
