// `gpulet.faults`: who is told of a device with a fault, and which Pods leave it. Plain values; the agent's
// fault_care.h acts by them.
#pragma once

#include <map>
#include <string>

#include "health/moving.h"
#include "health/telling.h"

namespace gpulet::config {

struct FaultSettings {
  bool condition = true;   // the node's condition GpuHealthy
  bool label = true;       // the node's label gpulet.io/gpu-health
  bool pod_events = true;  // events of the Pods that hold the device
  bool pod_notes = false;  // and an annotation on each: needs patch on pods
  // The effect of the node's taint gpulet.io/gpu-fault while that is its severity; none where there is no
  // entry.
  std::map<health::Severity, std::string> taints;
  health::MovingPolicy moving;
  unsigned cluster_percent = 0;  // of `moving`: agent/fault_moving.h
};

}  // namespace gpulet::config
