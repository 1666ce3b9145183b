// The metrics of Pods that the API gives, and their values as Kubernetes writes quantities. Pure.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace gpulet::metrics_api {

enum class Metric { kUtilization, kMemoryUsed, kMemoryUtilization, kPower };

struct MetricInfo {
  Metric metric;
  std::string_view name;
};
inline constexpr std::array<MetricInfo, 4> kMetrics = {{
    {Metric::kUtilization, "gpu_utilization"},               // percent, the mean of the Pod's devices
    {Metric::kMemoryUsed, "gpu_memory_used"},                // bytes, of all its devices
    {Metric::kMemoryUtilization, "gpu_memory_utilization"},  // percent of what Pods can use of its devices
    {Metric::kPower, "gpu_power_watts"},                     // of the GPUs that it holds alone
}};

std::optional<Metric> metric_by_name(std::string_view name);

// "42", "42500m": to the thousandth, which is as fine as an autoscaler reads. `value` is finite and not
// negative. Source: Kubernetes API machinery, resource.Quantity.
std::string quantity(double value);

}  // namespace gpulet::metrics_api
