// What the API answers, as JSON. Pure.
// Source: k8s.io/metrics, custom_metrics v1beta2 and v1beta1; Kubernetes API concepts, discovery.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "metrics_api/target.h"

namespace gpulet::metrics_api {

struct PodValue {
  std::string pod;
  double value = 0;
  WallTime at;  // when it was measured
};

std::string group_list();
std::string group();
// One resource for each metric: "pods/gpu_utilization".
std::string resource_list(std::string_view version);
// In the order given.
std::string metric_values(const PodMetric& asked, const std::vector<PodValue>& values);
// A failure: `reason` as the API machinery has it, "Forbidden".
std::string failure(int status, std::string_view reason, std::string_view message);

}  // namespace gpulet::metrics_api
