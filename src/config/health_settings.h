// `gpulet.faults` as plain values, and the tables of `gpulet.faults` and `gpulet.health`. The fields of
// `gpulet.health` are health::Policy. The agent's remediation_controller.h applies FaultSettings.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "health/policy/eviction_policy.h"
#include "health/report/node_health.h"

namespace gpulet::config {

struct Setting;

struct FaultSettings {
  bool condition = true;         // publish the Node condition GpuHealthy
  bool label = true;             // publish the Node label gpulet.io/gpu-health
  bool pod_events = true;        // send Events about the Pods that hold the device
  bool pod_annotations = false;  // annotate those Pods; needs patch on pods
  // The effect of the Node taint gpulet.io/gpu-fault by severity; no entry: no taint.
  std::map<health::Severity, std::string> taints;
  health::EvictionPolicy eviction;
  unsigned max_unhealthy_nodes_percent = 0;  // applied by agent/remediation/pod_evictor.h; 0: not checked
};

// A row for each of health::policy_settings(): `gpulet.health.pollInterval` in the file,
// --health-poll-interval, GPULET_HEALTH_POLL_INTERVAL. In the file only: `classes.CLASS.effect` and
// `classes.CLASS.recoveryHold` of each fault class.
std::vector<Setting> health_settings();

// `gpulet.faults`. In the file only: `eviction.classes.CLASS` of each fault class.
std::vector<Setting> faults_settings();

}  // namespace gpulet::config
