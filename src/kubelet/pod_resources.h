// Which Pod holds which devices: the kubelet's PodResources API v1. The only ledger of allocations there is.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/strong.h"
#include "kubelet/rpc.h"

namespace gpulet::kubelet {

inline constexpr Duration kPodResourcesTimeout = std::chrono::seconds(10);
// A node with many Pods answers with more than gRPC's own 4 MiB.
inline constexpr int kMaxPodResourcesBytes = 64 << 20;

using DevicesByResource = std::map<ResourceName, std::vector<DeviceId>>;

struct ContainerDevices {
  std::string name_space, pod, container;
  DevicesByResource devices;
  friend bool operator==(const ContainerDevices&, const ContainerDevices&) = default;
};

// "namespace/name" of the Pod that holds each device.
std::map<DeviceId, std::string> pods_by_device(const std::vector<ContainerDevices>& containers);

// Loop's thread only. Callbacks come on the loop, once each, never from inside the call and none after destruction.
// Errors: kUnavailable where nobody listens, kDeadlineExceeded, kPermissionDenied, kUnsupported where the kubelet does
// not know the call, kInternal for what else it answers.
class PodResources {
 public:
  virtual ~PodResources() = default;
  // Every container that holds a device, in the kubelet's order.
  virtual void list(std::function<void(Result<std::vector<ContainerDevices>>)> done) = 0;
  // Every healthy device, held or not; ids sorted.
  virtual void allocatable(std::function<void(Result<DevicesByResource>)> done) = 0;
};

// `socket`: "<kubelet dir>/pod-resources/kubelet.sock". Nothing is opened before the first call; the connection is
// kept between calls and made anew when it broke.
std::unique_ptr<PodResources> make_pod_resources(Loop& loop, std::shared_ptr<Rpc> rpc, std::string socket,
                                                 Duration timeout = kPodResourcesTimeout);

}  // namespace gpulet::kubelet
