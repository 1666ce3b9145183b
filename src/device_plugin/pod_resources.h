// The one thread that speaks gRPC, for every resource's socket, the kubelet's Register and PodResources.
//
// gRPC's own listeners, connectors and callback pool stay unused: its callback API starts a thread for every
// two cores (up to 16) that wake all the time, its connector backs off for a second when the kubelet has
// bound and not yet listened, and its listener unlinks by path what may be a newer socket by then. So the
// loop listens, accepts and connects, and hands connected sockets over; one server and one completion queue
// serve all of them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"

namespace gpulet::device_plugin {

class GrpcThread;     // in rpc_core.h, for the libraries that speak gRPC
class AddedServices;  // likewise

// Starts the thread; `more` are served beside the device plugin. Ends it (open calls are cancelled) when the
// last owner is gone, within milliseconds.
std::shared_ptr<GrpcThread> start_grpc_thread(std::shared_ptr<AddedServices> more = nullptr);

inline constexpr Duration kPodResourcesTimeout = std::chrono::seconds(10);
// With many Pods a response is larger than gRPC's default limit of 4 MiB.
inline constexpr int kMaxPodResourcesBytes = 64 << 20;

using DevicesByResource = std::map<ResourceName, std::vector<DeviceId>>;

// "namespace/name" of the Pod that holds each device, of one resource or (nullptr) of all.
std::map<DeviceId, std::string> pods_by_device(const std::vector<ContainerDevices>& containers,
                                               const ResourceName* resource = nullptr);

// The kubelet's PodResources API v1, the only source for which Pod holds which devices. Loop's thread only.
// Each callback comes once, from the loop, never from inside the call or after destruction. Errors:
// kUnavailable where nobody listens, kDeadlineExceeded, kPermissionDenied, kUnsupported where the kubelet
// does not know the call, kInternal for any other error of the kubelet.
class PodResources {
 public:
  virtual ~PodResources() = default;
  // Every container that holds a device, in the kubelet's order. A claim's are below its driver's name.
  virtual void list_containers(std::function<void(Result<std::vector<ContainerDevices>>)> done) = 0;
  // Every healthy device, held or not; ids sorted.
  virtual void list_allocatable(std::function<void(Result<DevicesByResource>)> done) = 0;
  // In the callback of list_containers(): how long it waited before the kubelet was asked (list_delay.h).
  virtual Duration list_delay() const { return {}; }
};

// `socket`: "<kubelet dir>/pod-resources/kubelet.sock". Nothing is opened before the first call; the
// connection is kept between calls and opened again when it broke.
std::unique_ptr<PodResources> make_pod_resources(Loop& loop, std::shared_ptr<GrpcThread> rpc,
                                                 std::string socket, Duration timeout = kPodResourcesTimeout);

}  // namespace gpulet::device_plugin
