// What holds the memory limits of containers on GPUs that they have by claims.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "agent/node/node.h"
#include "base/result.h"
#include "base/types.h"
#include "config/config.h"
#include "dra/claim_memory.h"
#include "fraction/limit_grade.h"
#include "inventory/snapshot.h"
#include "k8s/object_reader.h"
#include "partition/resources.h"

namespace gpulet::agent {

// By GPU, without what a claim's MPS control daemon holds: NodeDevices::limit_means. Pure.
std::map<DeviceUuid, fraction::LimitMeans> claim_limit_means(const inventory::Snapshot& snapshot,
                                                             const config::Config& config);

// On a GPU, with its claim's MPS control daemon; nothing for one that the snapshot lacks.
fraction::LimitMeans claim_limit_means(const Node& node, const inventory::Snapshot& snapshot,
                                       const DeviceUuid& gpu);

// On each GPU without MIG whose memory the MPS control daemon of a claim limits. Pure.
std::vector<fraction::LimitMeans> claim_daemon_means(const std::map<std::string, dra::ClaimRecord>& records,
                                                     const inventory::Snapshot& snapshot,
                                                     const config::Config& config);

// MemoryLedgerPorts::claimed_memory.
Result<std::map<DeviceUuid, dra::ClaimedMemory>> find_claimed_memory(
    const Node& node, const std::string& name_space, std::span<const k8s::ContainerClaim> claims);

// The GPUs that claims share, as partition::common_limit_means() takes them; no devices without a pool. Pure.
partition::Resource shared_by_claims(const dra::DevicePool* pool, const inventory::Snapshot& snapshot);

}  // namespace gpulet::agent
