// The paths of the custom metrics API and its responses. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::metrics_api {

// Parses a request's target. Pure; accepts any bytes.
// Source: Kubernetes custom metrics API, design proposal "custom-metrics-api"; API concepts, "Resource
// URIs".

inline constexpr std::string_view kGroup = "custom.metrics.k8s.io";
inline constexpr std::string_view kVersions[] = {"v1beta2", "v1beta1"};  // preferred first

inline constexpr Duration kDefaultHorizon = std::chrono::hours(1);
inline constexpr Duration kMinHorizon = std::chrono::minutes(1), kMaxHorizon = std::chrono::hours(24);

struct HealthRequest {
  bool ready = false;  // /readyz, else /healthz or /livez
};
struct GroupListRequest {};  // /apis
struct GroupRequest {};      // /apis/GROUP
struct ResourceListRequest {
  std::string version;
};
// /apis/GROUP/VERSION/namespaces/NAMESPACE/pods/POD/METRIC
struct PodMetricRequest {
  std::string version, name_space;
  std::string pod;  // "*": those of the selector, or all
  std::string metric;
  std::string selector;  // label selector; empty: every Pod
  // How far gpu_utilization_forecast looks, from the metric's label selector: "horizon=1h".
  Duration horizon = kDefaultHorizon;
  bool selects_all() const { return pod == "*"; }
};
struct UnknownRequest {};
using RequestTarget = std::variant<HealthRequest, GroupListRequest, GroupRequest, ResourceListRequest,
                                   PodMetricRequest, UnknownRequest>;

// Errors: kInvalidArgument for invalid escapes and names, and for unsupported selections: by metric labels
// but the horizon, by fields, as a watch.
Result<RequestTarget> parse_request_target(std::string_view target);

// The path without its query, as used for authorization.
std::string_view target_path(std::string_view target);

// The API's JSON responses. Pure.
// Source: k8s.io/metrics, custom_metrics v1beta2 and v1beta1; Kubernetes API concepts, discovery.

struct PodValue {
  std::string pod;
  double value = 0;
  WallTime at;  // when it was measured
};

std::string group_list_json();
std::string group_json();
// One resource for each metric: "pods/gpu_utilization".
std::string resource_list_json(std::string_view version);
// Keeps the given order.
std::string metric_values_json(const PodMetricRequest& request, const std::vector<PodValue>& values);
// A Status of a failed request; `reason` as in the API machinery: "Forbidden".
std::string failure_status_json(int status, std::string_view reason, std::string_view message);

}  // namespace gpulet::metrics_api
