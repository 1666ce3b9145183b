#include "device_plugin/pod_demands.h"

#include <algorithm>
#include <optional>

#include "device_plugin/allocation.h"

namespace gpulet::device_plugin {
namespace {

std::string shares_text(placement::SharesOn where) {
  return where == placement::SharesOn::kOneGpu ? "one GPU" : "different GPUs";
}

// Why the container does not accept the devices; empty: it does.
std::string find_refusal(const Offer& offer, std::span<const DeviceId> ids, const PodDemand& demand) {
  std::vector<std::size_t> gpus;
  std::vector<std::optional<int>> numa_nodes;
  bool is_shared = false;
  for (const auto& id : ids) {
    if (const auto refused = demand.refused.find(id); refused != demand.refused.end()) return refused->second;
    const auto device = std::ranges::find(offer.resource.devices, id, &partition::Device::id);
    if (device == offer.resource.devices.end()) return {};
    gpus.push_back(device->gpu);
    numa_nodes.push_back(device->numa_node);
    is_shared |= device->replica.has_value();
  }
  if (is_shared && !placement::are_shares_placed(demand.shares_on, gpus)) {
    return "annotation gpulet.io/gpu-shares-on: expected " + std::to_string(ids.size()) + " shares on " +
           shares_text(demand.shares_on) + ", found " +
           shares_text(demand.shares_on == placement::SharesOn::kOneGpu ? placement::SharesOn::kDifferentGpus
                                                                        : placement::SharesOn::kOneGpu);
  }
  // Where a GPU is, is not known of each: then nothing speaks against it.
  const auto known = std::ranges::find_if(numa_nodes, [](const auto& node) { return node.has_value(); });
  const bool is_split =
      std::ranges::any_of(numa_nodes, [&](const auto& node) { return node.has_value() && node != *known; });
  if (demand.one_numa_node && is_split)
    return "annotation nvidia.com/numa-bind: expected GPUs of one NUMA node, found several";
  return {};
}

}  // namespace

std::vector<const PodDemand*> find_candidates(std::span<const PodDemand> demands,
                                              const ResourceName& resource, std::size_t count) {
  std::vector<const PodDemand*> found;
  for (const auto& demand : demands) {
    if (demand.resource == resource && demand.count == count) found.push_back(&demand);
  }
  return found;
}

Status check_demands(const Offer& offer, std::span<const DeviceId> ids, std::span<const PodDemand> demands) {
  std::string reason;
  for (const auto* const demand : find_candidates(demands, offer.resource.name, ids.size())) {
    const auto refusal = find_refusal(offer, ids, *demand);
    if (refusal.empty()) return {};
    if (reason.empty()) reason = "the Pod " + demand->pod + " does not accept it: " + refusal;
  }
  if (reason.empty()) return {};
  return fail(Code::kFailedPrecondition,
              "invalid allocation request for \"" + offer.resource.name.str() + "\": " + reason);
}

const PodDemand* find_common_demand(std::span<const PodDemand> demands, const ResourceName& resource,
                                    std::size_t count) {
  const auto candidates = find_candidates(demands, resource, count);
  if (candidates.empty() || !candidates.front()->has_choice()) return nullptr;
  const auto& first = *candidates.front();
  const bool is_common = std::ranges::all_of(candidates, [&](const PodDemand* one) {
    return one->refused == first.refused && one->shares_on == first.shares_on &&
           one->one_numa_node == first.one_numa_node;
  });
  return is_common ? &first : nullptr;
}

}  // namespace gpulet::device_plugin
