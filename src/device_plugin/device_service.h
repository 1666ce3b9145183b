// The DevicePlugin service for every resource at once, on one completion queue. The connection that a request
// came over tells its resource.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/result.h"
#include "base/types.h"
#include "device_plugin/allocation.h"

namespace grpc {
class ServerCompletionQueue;
class Service;
}  // namespace grpc

namespace gpulet::device_plugin {

// The kubelet's calls of Allocate and GetPreferredAllocation, which begins an Allocate.
struct AllocationCalls {
  unsigned open = 0;
  std::optional<std::chrono::steady_clock::time_point> answered{};  // the last one
};

// Any thread may call any member.
class DeviceService {
 public:
  DeviceService();
  ~DeviceService();

  grpc::Service& service();
  // Begins to take requests. `queue` lives until after stop() and until it is drained.
  void start_serving(grpc::ServerCompletionQueue& queue);
  // No new operation is begun after this.
  void stop_serving();

  // Called under the service's lock when a resource's first stream opens and its last one ends.
  void set_watch_callback(std::function<void(const ResourceName&, bool)> watched);
  // Called under the service's lock after a container was given devices.
  void set_allocation_callback(std::function<void()> allocated);
  // Called under the service's lock, with the call's number, when a call would allocate or prefer a device
  // that a container may hold: resume_call() answers it. Without a callback, and when it is replaced, such
  // calls are answered as if no container held the device.
  void set_holder_callback(std::function<void(std::uint64_t call)> ask);
  // The kubelet's List that a call waits for, or why there is none: then no device counts as held. Not for a
  // call that has ended.
  void resume_call(std::uint64_t call, const Result<std::vector<ContainerDevices>>& containers);
  // Called under the service's lock, with the call's number, before each Allocate and GetPreferredAllocation:
  // resume_with_demands() lets it go on. Without a callback, and when it is replaced, nothing is demanded.
  void set_demand_callback(std::function<void(std::uint64_t call)> ask);
  void resume_with_demands(std::uint64_t call, std::vector<PodDemand> demands);
  // A List that the kubelet was asked for at `asked`.
  void note_containers(const std::vector<ContainerDevices>& containers,
                       std::chrono::steady_clock::time_point asked);
  // As HeldDevices::shows_allocations(), of the Lists that were noted.
  bool shows_allocations() const;
  AllocationCalls allocation_calls() const;

  // What the resource's requests are answered from, from now on. Its streams are sent the device list if it
  // differs.
  void set_offer(OfferPtr offer);
  // Ends the resource's streams; its requests are answered UNAVAILABLE.
  void remove_offer(const ResourceName& resource);

  // Requests of peer "fd:<fd>" are for `resource`, until the connection of this serial is gone.
  void add_connection(int fd, std::uint64_t serial, const ResourceName& resource);
  void remove_connection(int fd, std::uint64_t serial);

  // Since the start, of the resources that are there.
  std::map<ResourceName, ResourceCalls> call_counts() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulet::device_plugin
