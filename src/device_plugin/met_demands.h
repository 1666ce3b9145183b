// Which demands of Pods were met: between its Allocate and the status of its Pod, a container still looks as
// if it waits.
#pragma once

#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "device_plugin/pod_demands.h"

namespace v1beta1 {
class AllocateRequest;
class AllocateResponse;
class PreferredAllocationRequest;
class PreferredAllocationResponse;
}  // namespace v1beta1

namespace gpulet::device_plugin {

using Demands = std::vector<PodDemand>;

// Not synchronized.
class MetDemands {
 public:
  // The Allocate was answered: its container is known if only one demand can be meant.
  void note_allocation(const ResourceName& resource, const v1beta1::AllocateRequest& request,
                       const Demands& demands);
  // Those that were not met; forgets what is not there any more. `demands`: all of the node.
  Demands remove_met(Demands demands);

 private:
  using Key = std::tuple<std::string, std::string, ResourceName>;  // Pod's UID, container, resource
  static Key key_of(const PodDemand& demand) { return {demand.pod_uid, demand.container, demand.resource}; }
  std::set<Key> met_;
};

// Whether a call gives devices to a Pod.
template <class Request>
inline constexpr bool kGivesDevices = std::is_same_v<Request, v1beta1::AllocateRequest> ||
                                      std::is_same_v<Request, v1beta1::PreferredAllocationRequest>;

// The devices that an answer gives, for the calls that give any.
template <class Request, class Response>
std::vector<DeviceId> given_devices(const Request&, const Response&) {
  return {};
}
std::vector<DeviceId> given_devices(const v1beta1::AllocateRequest& request,
                                    const v1beta1::AllocateResponse&);
std::vector<DeviceId> given_devices(const v1beta1::PreferredAllocationRequest&,
                                    const v1beta1::PreferredAllocationResponse& response);

}  // namespace gpulet::device_plugin
