#include "agent/dra/claim_limits.h"

#include <algorithm>
#include <utility>

#include "dra/device_pool.h"
#include "partition/limit_means.h"

namespace gpulet::agent {
namespace {

fraction::LimitMeans means_of_gpu(std::size_t index, const inventory::Snapshot& snapshot,
                                  const config::Config& config) {
  partition::Device device;
  device.gpu = index;
  return partition::limit_means_of({}, device, snapshot, config);
}

}  // namespace

std::map<DeviceUuid, fraction::LimitMeans> claim_limit_means(const inventory::Snapshot& snapshot,
                                                             const config::Config& config) {
  std::map<DeviceUuid, fraction::LimitMeans> means;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i)
    means[snapshot.gpus[i].uuid] = means_of_gpu(i, snapshot, config);
  return means;
}

fraction::LimitMeans claim_limit_means(const Node& node, const inventory::Snapshot& snapshot,
                                       const DeviceUuid& gpu) {
  const auto found = std::ranges::find(snapshot.gpus, gpu, &inventory::Gpu::uuid);
  if (found == snapshot.gpus.end()) return {};
  auto means = means_of_gpu(static_cast<std::size_t>(found - snapshot.gpus.begin()), snapshot, node.config);
  const auto* daemon =
      node.claim_records == nullptr ? nullptr : dra::find_claim_daemon(*node.claim_records, gpu);
  if (daemon == nullptr) return means;
  const auto limit = daemon->limits_mib.find(gpu);
  if (limit != daemon->limits_mib.end()) means.mps_process_mib = limit->second;
  return means;
}

std::vector<fraction::LimitMeans> claim_daemon_means(const std::map<std::string, dra::ClaimRecord>& records,
                                                     const inventory::Snapshot& snapshot,
                                                     const config::Config& config) {
  std::vector<fraction::LimitMeans> all;
  for (std::size_t i = 0; i < snapshot.gpus.size(); ++i) {
    const auto& gpu = snapshot.gpus[i];
    const auto* daemon = gpu.mig_enabled ? nullptr : dra::find_claim_daemon(records, gpu.uuid);
    if (daemon == nullptr) continue;
    const auto limit = daemon->limits_mib.find(gpu.uuid);
    if (limit == daemon->limits_mib.end()) continue;
    all.push_back(means_of_gpu(i, snapshot, config));
    all.back().mps_process_mib = limit->second;
  }
  return all;
}

Result<std::map<DeviceUuid, dra::ClaimedMemory>> find_claimed_memory(
    const Node& node, const std::string& name_space, std::span<const k8s::ContainerClaim> claims) {
  if (node.claim_records == nullptr)
    return fail(node.config.gpulet.dra.enabled ? Code::kUnavailable : Code::kUnsupported,
                "this agent serves no claims");
  return dra::claimed_memory(*node.claim_records, name_space, claims);
}

partition::Resource shared_by_claims(const dra::DevicePool* pool, const inventory::Snapshot& snapshot) {
  if (pool == nullptr) return {};
  return partition::resource_of_claims(snapshot, [&](std::size_t gpu) {
    return std::ranges::any_of(pool->devices, [&](const dra::PoolDevice& one) {
      return one.uuid == snapshot.gpus[gpu].uuid && one.device.allows_multiple;
    });
  });
}

}  // namespace gpulet::agent
