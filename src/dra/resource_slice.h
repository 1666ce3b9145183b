// ResourceSlices: their JSON in both directions, and what has to be written so that the API server shows the
// devices of this node. A function of the devices and of what the watch shows: equal means no write, so a
// restart writes nothing, and a deletion by somebody else is repaired on the same way.
//
// Source: resource.k8s.io/v1, ResourceSlice and its validation (Kubernetes 1.36); consumers use the highest
// generation of a pool, and only if it has resourceSliceCount slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dra/device.h"

namespace gpulet::dra {

inline constexpr const char* kSliceCollection = "/apis/resource.k8s.io/v1/resourceslices";
inline constexpr std::size_t kMaxSliceBytes = 4u << 20;
inline constexpr std::size_t kMaxSliceDevices = 128;  // by the API, in a slice without taints and counters
// What we write: the limit of a slice in which any device has a taint, so that a fault never splits one.
inline constexpr std::size_t kSliceDevices = 64;
// By the API; a slice has devices or counter sets.
inline constexpr std::size_t kMaxCounterSets = 8, kMaxCounters = 32, kMaxConsumedSets = 2;

struct ResourceSlice {
  std::string name;
  std::string resource_version{};  // as read; empty for one that is to be created
  std::string driver, node, pool;
  std::int64_t generation = 0;
  std::int64_t slice_count = 0;
  std::vector<Device> devices{};
  std::vector<CounterSet> counter_sets{};
  // Read with content that we never write, such as binding conditions: it differs from every slice of ours.
  bool has_other_content = false;
};

// Reads a slice of any writer. Errors: kInvalidArgument for what is not JSON, a size or list above its limit,
// and a missing or mistyped field that every slice has. Pure.
Result<ResourceSlice> parse_slice(std::string_view json);

// The Node that owns the slices, so that they go with it.
struct SliceOwner {
  std::string node, uid;  // without a uid, no owner is written
};

// The body of a POST, or of a PUT if it has a resourceVersion. Equal slices have equal bytes. Pure.
std::string slice_json(const ResourceSlice& slice, const SliceOwner& owner);

struct PoolName {
  std::string driver, pool, node;
};

// What to send, in this order.
struct SlicePlan {
  std::vector<ResourceSlice> deletes, updates, creates;
  bool empty() const { return deletes.empty() && updates.empty() && creates.empty(); }
};

// Makes the pool have these devices in this order: in the fewest slices, at least one. `shown`: every slice
// of the driver on this node. Slices under names of others, and of other pools, are deleted. All slices have
// one generation, a new one unless no consumer can take a mixture of old and new slices for the pool: where
// one slice changes and none comes or goes, and where slices of the shown generation are missing. So the plan
// for what is shown halfway through a plan is the rest of that plan. Taints keep the timeAdded that is shown.
// Cost: linear in devices. Pure.
SlicePlan plan_slices(const PoolName& pool, const std::vector<Device>& devices,
                      const std::vector<ResourceSlice>& shown,
                      const std::vector<CounterSet>& counter_sets = {});

// "00000-gpu.nvidia.com-node-1": the scheduler takes slices in the order of their names. A long node name is
// cut and gets a hash.
std::string slice_name(const PoolName& pool, std::size_t index);

// Whether the API server kept the taints of what it was sent. It drops them silently where the feature gate
// DRADeviceTaints is off.
bool kept_taints(const ResourceSlice& sent, const ResourceSlice& answered);

// Likewise its counters, and what its devices consume of them: the feature gate DRAPartitionableDevices.
bool kept_counters(const ResourceSlice& sent, const ResourceSlice& answered);
// For a server that drops counters: without the devices that consume any, which are not independent.
std::vector<Device> without_partitions(std::vector<Device> devices);

// Likewise that several claims may have a device: the feature gate DRAConsumableCapacity.
bool kept_shares(const ResourceSlice& sent, const ResourceSlice& answered);
// For a server that drops it: each device for one claim, without the capacity that counts shares.
std::vector<Device> without_shares(std::vector<Device> devices);

// For a server that drops taints: without the devices that have a taint other than None, and without taints.
std::vector<Device> without_tainted(std::vector<Device> devices);

}  // namespace gpulet::dra
