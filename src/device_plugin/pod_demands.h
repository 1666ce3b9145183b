// Which devices the Pods accept that the kubelet is about to admit. Neither GetPreferredAllocation nor
// Allocate names the Pod: the kubelet asks for one Pod after the other, in the order in which they are bound,
// so that the first container that waits for that many devices of the resource is the one asked for.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace gpulet::device_plugin {

// What a container of a Pod requests of one resource.
struct PodDemand {
  std::string pod_uid, pod, container;  // pod: "namespace/name"
  ResourceName resource;
  std::size_t count = 0;
  std::optional<std::set<DeviceId>> accepted{};  // nullopt: any device
  std::string requirement{};                     // why it accepts no others, one line: "index 0 required"
  friend bool operator==(const PodDemand&, const PodDemand&) = default;
};

// The demands of the Pods that were not admitted yet, in the kubelet's order. Whoever watches Pods sets them,
// and whoever answers the kubelet reads them. Any thread; a caller waits for a look at the list at most.
class DemandBoard {
 public:
  // Those that were met stay met while they are in the list.
  void set_demands(std::vector<PodDemand> demands);

  // The first unmet demand for `count` devices, if it accepts only some; nullopt: any device.
  std::optional<std::set<DeviceId>> accepted_devices(const ResourceName& resource, std::size_t count) const;

  // Meets the first demand for that many devices that accepts these. Error: kFailedPrecondition if there are
  // such demands and none accepts them, with the first one's Pod and requirement.
  Status meet_demand(const ResourceName& resource, std::span<const DeviceId> ids);

 private:
  struct Entry {
    PodDemand demand;
    bool is_met = false;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace gpulet::device_plugin
