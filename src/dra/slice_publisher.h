// Keeps the ResourceSlices of this node's pool as they should be: watches them, and writes what differs
// (dra/resource_slice.h). A slice that somebody else deletes or changes is repaired at once; unchanged
// devices cost no write, also after a restart.
//
// Source: Kubernetes 1.36: the kubelet deletes all slices of its node when it starts, and those of a driver
// that is gone for 30 s. A watch of slices needs the field selector spec.nodeName.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/types.h"
#include "dra/device.h"
#include "dra/resource_slice.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/watcher.h"

namespace gpulet::dra {

struct SliceTiming {
  k8s::SendTiming sending{std::chrono::seconds(10),
                          {std::chrono::milliseconds(100), std::chrono::seconds(30)}};
  k8s::CollectionTiming watching{};
};

// Needs get on nodes, and list, watch, create, update and delete on resourceslices. Loop's thread only.
// Never blocks. While the API server refuses or is unreachable, which is logged once, it is asked again with
// backoff.
class SlicePublisher {
 public:
  // `shown` is called from the loop after the slices that are shown have changed; it may not destroy the
  // publisher.
  static std::unique_ptr<SlicePublisher> start_publisher(Loop& loop, const k8s::ClientConfig& access,
                                                         PoolName pool, SliceTiming timing = {},
                                                         std::function<void()> shown = nullptr);
  virtual ~SlicePublisher() = default;

  // What to publish; the newest wins. Nothing is written before the first call. If the API server drops
  // taints, devices with a taint that keeps claims off are left out of the slices; if it drops or refuses
  // counters, devices that consume them are; if it drops shares, each device is offered to one claim. When
  // the connection of the watch is lost, it is asked again by a dry run what it keeps: the feature gate may
  // be on.
  virtual void set_devices(std::vector<Device> devices, std::vector<CounterSet> counter_sets) = 0;
  // Deletes every slice of the driver on this node, and publishes nothing until the next set_devices().
  virtual void remove_slices() = 0;

  // As the API server shows them, by name.
  virtual std::vector<ResourceSlice> shown_slices() const = 0;
  // Whether these are all that there is: they are known, they are as set_devices() or remove_slices() wants
  // them, and no write is in progress.
  virtual bool is_settled() const = 0;
  virtual k8s::SendStatus publisher_status() const = 0;
};

// UUIDs of the GPUs that the slices show, whole or by a MIG device.
std::set<DeviceUuid> shown_gpus(const std::vector<ResourceSlice>& slices);
// UUIDs by device name, as the slices show them; of a partition that of its GPU.
std::map<std::string, std::string> shown_uuids(const std::vector<ResourceSlice>& slices);

}  // namespace gpulet::dra
