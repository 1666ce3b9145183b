// The controller of a Pod, from the Pod's name, and the load that a controller's Pods are known to have.
//
// What a service did is remembered under its controller, so that it outlives its Pods. The name tells the
// controller to everybody who sees the Pod: an agent needs no right to read Pods, and the agents and the
// extender agree. A wrong guess costs a worse forecast, within the namespace.
//
// Source: how Kubernetes' controllers name Pods: `NAME-HASH-RANDOM` (Deployment), `NAME-RANDOM` (ReplicaSet,
// DaemonSet, Job), `NAME-INDEX` (StatefulSet), `NAME-INDEX-RANDOM` (indexed Job), `NAME-MINUTES-RANDOM`
// (CronJob); apimachinery's util/rand, SafeEncodeString and String, for the letters of HASH and RANDOM. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "scheduler/load/forecast.h"

namespace gpulet::scheduler {

// "team/web-6d4cf56db6-x2x9k" → "team/web"; a Pod without a controller, or with a name that was cut at
// Kubernetes' limit, is its own: "team/notebook". `pod` is "namespace/name", or a name alone.
std::string controller_of_pod(std::string_view pod);

// What one Pod of a controller uses of each of its GPUs.
struct ControllerLoad {
  std::string controller;    // "namespace/name"
  LoadCurve curve;           // mean over its Pods
  std::uint32_t hours = 0;   // of whole hours that it was learned from
  std::int64_t last_hour{};  // when a Pod was last seen, in hours since 1970
  friend bool operator==(const ControllerLoad&, const ControllerLoad&) = default;

  // Whether it says more than `other` about the same controller.
  bool is_better_than(const ControllerLoad& other) const {
    return hours != other.hours ? hours > other.hours : last_hour > other.last_hour;
  }
};

// A load of fewer hours is a guess: a service is expected to repeat its day after it was seen for one.
inline constexpr std::uint32_t kKnownHours = 24;

}  // namespace gpulet::scheduler
