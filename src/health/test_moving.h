// For tests: devices that broke, and Pods on them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "health/moving.h"
#include "health/test_feed.h"

namespace gpulet::health {

inline constexpr Time kStart{std::chrono::hours(1000)};

inline State state_of(Effect effect) {
  switch (effect) {
    case Effect::kIgnore:
      return State::kHealthy;
    case Effect::kFlag:
      return State::kDegraded;
    case Effect::kDrain:
      return State::kDraining;
    case Effect::kQuarantine:
      return State::kQuarantined;
    case Effect::kLose:
      return State::kLost;
  }
  return State::kHealthy;
}

inline DeviceStanding broken(const Scope& device, FaultClass fault_class, Time opened = kStart,
                             std::optional<Effect> effect = {}) {
  Fault fault;
  fault.fault_class = fault_class;
  fault.scope = device;
  fault.effect = effect.value_or(rule_of(fault_class).effect);
  fault.opened = opened;
  Change change{device, {}, {}};
  change.after.state = state_of(fault.effect);
  change.after.faults.push_back(fault);
  return DeviceStanding::of(change);
}

inline PodOnDevice pod(const std::string& name, std::vector<Scope> devices,
                       const std::string& owner = "ReplicaSet") {
  return {.name_space = "default", .name = name, .uid = "uid-" + name, .owner = owner, .devices = devices};
}

inline MovingPolicy on() {
  MovingPolicy policy;
  policy.enabled = true;
  return policy;
}

}  // namespace gpulet::health
