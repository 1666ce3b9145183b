// What the Pods accept that the kubelet may be asking for. Neither GetPreferredAllocation nor Allocate names
// its Pod: whatever is refused here, every Pod refuses that the request can be for. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "placement/chooser.h"

namespace gpulet::device_plugin {

struct Offer;

// What a container requests of one resource.
struct PodDemand {
  std::string pod_uid, pod, container;  // pod: "namespace/name"
  ResourceName resource;
  std::size_t count = 0;
  // The devices that it does not accept, with the reason: "annotation gpulet.io/gpu-index: expected index 5,
  // found GPU 0 (NVIDIA A100)". A device that is not here is accepted.
  std::map<DeviceId, std::string> refused{};
  placement::SharesOn shares_on = placement::SharesOn::kAnyGpu;
  bool one_numa_node = false;
  bool has_choice() const {
    return !refused.empty() || shares_on != placement::SharesOn::kAnyGpu || one_numa_node;
  }
  friend bool operator==(const PodDemand&, const PodDemand&) = default;
};

// Those that a request for `count` devices of the offer can be for.
std::vector<const PodDemand*> find_candidates(std::span<const PodDemand> demands,
                                              const ResourceName& resource, std::size_t count);

// Whether one of the candidates accepts the devices, or there is none. Error: kFailedPrecondition with the
// first candidate's reason.
Status check_demands(const Offer& offer, std::span<const DeviceId> ids, std::span<const PodDemand> demands);

// The candidate whose choice all others share; null: they differ, or there is no choice.
const PodDemand* find_common_demand(std::span<const PodDemand> demands, const ResourceName& resource,
                                    std::size_t count);

}  // namespace gpulet::device_plugin
