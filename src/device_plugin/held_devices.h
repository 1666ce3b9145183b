// Which devices containers may hold, so that none is allocated twice.
//
// The kubelet can offer a device that a container holds: a List of PodResources, by anybody, recomputes what
// is allocated without an Allocate in progress (kubernetes/kubernetes#137534). The agent therefore asks who
// holds a device before it allocates one that may be held.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/types.h"

namespace gpulet::device_plugin {

// The kubelet records an allocation within this after Allocate is answered: a List that it was asked for
// earlier may not show it.
inline constexpr std::chrono::seconds kAllocationRecorded{10};

// Not synchronized. Its size follows the devices of the node and of the kubelet's last List.
class HeldDevices {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit HeldDevices(Time started) : started_(started) {}

  // Allocate was answered with these devices.
  void add_allocation(const ResourceName& resource, std::span<const DeviceId> ids, Time now);
  // The kubelet's List, for which it was asked at `asked`. It shows every allocation that was answered before
  // `complete_until`. What it shows has no effect after a List that was asked for later.
  void replace_list(const std::vector<ContainerDevices>& containers, Time asked, Time complete_until);

  // True if a container may hold one of them: it does by the newest List, or was allocated one that no List
  // has shown since. Always before the first List.
  bool may_be_held(const ResourceName& resource, std::span<const DeviceId> ids) const;
  // The devices that containers hold by the newest List, or that were allocated and that no List has shown
  // since. Their Pods are "unknown".
  std::map<DeviceId, std::string> last_known(const ResourceName& resource) const;

  // True if the kubelet was asked for a List after each allocation, and it showed it. Those of an earlier
  // agent are taken for recorded kAllocationRecorded after this one's start. One that a failed admission
  // drops is forgotten after the same time.
  bool shows_allocations() const;

 private:
  using Device = std::pair<ResourceName, DeviceId>;
  struct Allocation {
    Time time;
    bool is_shown = false;
  };
  bool has_list_ = false;
  Time started_;
  Time asked_{};  // for the newest List
  std::set<Device> listed_;
  std::map<Device, Allocation> allocated_;
};

}  // namespace gpulet::device_plugin
