// For tests: devices that broke, and Pods on them.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "health/policy/eviction_policy.h"
#include "health/state/test_feed.h"

namespace gpulet::health {

inline constexpr Time kStart{std::chrono::hours(1000)};

inline DeviceState state_with_effect(Effect effect) {
  switch (effect) {
    case Effect::kIgnore:
      return DeviceState::kHealthy;
    case Effect::kFlag:
      return DeviceState::kDegraded;
    case Effect::kDrain:
      return DeviceState::kDraining;
    case Effect::kQuarantine:
      return DeviceState::kQuarantined;
    case Effect::kLose:
      return DeviceState::kLost;
  }
  return DeviceState::kHealthy;
}

inline FaultyDevice faulty_device(const Scope& device, FaultClass fault_class, Time opened = kStart,
                                  std::optional<Effect> effect = {}) {
  Fault fault;
  fault.fault_class = fault_class;
  fault.scope = device;
  fault.effect = effect.value_or(fault_rule(fault_class).effect);
  fault.opened = opened;
  StatusChange change{device, {}, {}};
  change.after.state = state_with_effect(fault.effect);
  change.after.faults.push_back(fault);
  return FaultyDevice::from_change(change);
}

inline PodOnDevice pod_on_devices(const std::string& name, std::vector<Scope> devices,
                                  const std::string& owner = "ReplicaSet") {
  return {.name_space = "default", .name = name, .uid = "uid-" + name, .owner = owner, .devices = devices};
}

inline EvictionPolicy enabled_policy() {
  EvictionPolicy policy;
  policy.enabled = true;
  return policy;
}

}  // namespace gpulet::health
