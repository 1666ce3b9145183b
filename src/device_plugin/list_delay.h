// Keeps the agent's own Lists of PodResources out of an Allocate in progress: a List between the kubelet's
// choice of devices and its record of them makes it offer them again (kubernetes/kubernetes#137534). What
// happens all the same is held_devices.h's to find.
//
// An Allocate is in progress for the kubelet from a moment before its call to a moment after the answer: the
// record takes it well below kListAfterAllocation. GetPreferredAllocation begins one: Allocate follows at
// once.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"
#include "device_plugin/device_service.h"
#include "device_plugin/pod_resources.h"

namespace gpulet::device_plugin {

inline constexpr Duration kListAfterAllocation = std::chrono::milliseconds(10);
// A kubelet that allocates without an end delays a List by no more.
inline constexpr Duration kMaxListDelay = std::chrono::milliseconds(500);

enum class ListDelay {
  kUntilRecorded,   // no call is open, and the last was answered kListAfterAllocation ago
  kWhileCallsOpen,  // for whom a container waits
};

// `inner` with Lists that wait as `delay` says, at most kMaxListDelay each; list_allocatable() waits for
// nothing, because it makes the kubelet reconcile nothing. `inner` outlives it. `calls` is asked from the
// loop.
std::unique_ptr<PodResources> delay_lists(Loop& loop, PodResources& inner, ListDelay delay,
                                          std::function<AllocationCalls()> calls);
// By the calls that this thread serves.
std::unique_ptr<PodResources> delay_lists(Loop& loop, PodResources& inner, ListDelay delay,
                                          std::shared_ptr<GrpcThread> rpc);

}  // namespace gpulet::device_plugin
