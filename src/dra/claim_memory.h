// How much of each GPU's memory the claims of a container let it use: of a share of memory, what the
// scheduler has allocated (consumedCapacity). Other devices of claims set no limit. Pure.
//
// Exact without anything else than the claims' records and the Pod: a container names its claims and their
// requests, and a record has the devices of each request. Source: resource.k8s.io/v1, DeviceRequestAllocation
// Result (KEP-5075); core/v1, ResourceClaim of a container.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>

#include "base/result.h"
#include "base/types.h"
#include "dra/claim_record.h"
#include "fraction/fraction_request.h"
#include "k8s/object_reader.h"

namespace gpulet::dra {

struct ClaimedMemory {
  Bytes limit{};                      // of all its shares of the device; 0: none
  std::uint64_t mps_process_mib = 0;  // of each process, by the claim's MPS control daemon; 0: none
  bool has_mps = false;               // the claim shares the device by MPS
  std::string claim = {};             // "team/a": one that has the device
  std::set<std::string> shares = {};  // those in `limit`, by names that no other share has
  friend bool operator==(const ClaimedMemory&, const ClaimedMemory&) = default;
};

// By GPU or MIG device, all that these requests have; an admin's access and all of a device set no limit.
// Claims of other drivers have no record, and nothing here. What claims without a name have, which may be
// these, is here too, without a limit.
// Errors: kFailedPrecondition where two claims of a name have a record: the older one is not unprepared yet.
Result<std::map<DeviceUuid, ClaimedMemory>> claimed_memory(const std::map<std::string, ClaimRecord>& records,
                                                           const std::string& name_space,
                                                           std::span<const k8s::ContainerClaim> claims);

// What a Pod's request lets a container use of a GPU of which it has so many shares; 0: no limit, also where
// the memory of the GPU is not known.
Bytes requested_limit(const fraction::FractionRequest& request, Bytes gpu_memory, unsigned shares);
// The lesser of two limits; 0: neither is one.
Bytes least_limit(Bytes one, Bytes other);

// Why containers that use one share have no limit each: together they may use more. One line.
std::string common_share_text(const std::string& claim);

// The claim's MPS control daemon of a device; nullptr where there is none.
const RecordedDaemon* find_claim_daemon(const std::map<std::string, ClaimRecord>& records,
                                        const DeviceUuid& device);

}  // namespace gpulet::dra
