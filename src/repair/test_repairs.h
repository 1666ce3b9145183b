// For tests: a node of GPUs with chosen faults.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "health/policy/test_eviction.h"
#include "health/report/node_health.h"
#include "repair/repair_policy.h"

namespace gpulet::repair {

inline DeviceUuid test_uuid(unsigned gpu) { return DeviceUuid("GPU-" + std::to_string(gpu)); }

// `major`: 9: Hopper.
inline inventory::Snapshot test_snapshot(unsigned gpus, unsigned major = 9) {
  inventory::Snapshot snapshot;
  snapshot.generation = 1;
  for (unsigned i = 0; i < gpus; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = test_uuid(i);
    gpu.pci = {0, i + 1, 0, 0};
    gpu.compute_major = major;
    snapshot.gpus.push_back(gpu);
  }
  return snapshot;
}

inline health::Fault test_fault(health::FaultClass fault_class, std::string detail = {},
                                std::uint64_t code = 0) {
  health::Fault fault;
  fault.fault_class = fault_class;
  fault.effect = fault_rule(fault_class).effect;
  fault.detail = std::move(detail);
  fault.code = code;
  return fault;
}

inline health::DeviceView test_device(unsigned gpu, std::vector<health::Fault> faults) {
  health::DeviceView device;
  device.scope = {test_uuid(gpu)};
  device.uuid = device.scope.gpu;
  device.gpu_index = gpu;
  if (!faults.empty()) {
    device.status.state = health::state_with_effect(faults.front().effect);
    device.status.reason = faults.front().fault_text();
  }
  device.status.faults = std::move(faults);
  return device;
}

// Of `gpus` GPUs, those in `faults` have such faults.
inline health::HealthView test_view(unsigned gpus,
                                    const std::map<unsigned, std::vector<health::Fault>>& faults) {
  health::HealthView view;
  for (unsigned i = 0; i < gpus; ++i) {
    const auto found = faults.find(i);
    view.devices.push_back(
        test_device(i, found == faults.end() ? std::vector<health::Fault>() : found->second));
  }
  return view;
}

}  // namespace gpulet::repair
