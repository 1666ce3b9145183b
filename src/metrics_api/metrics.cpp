#include "metrics_api/metrics.h"

#include <algorithm>
#include <cmath>

namespace gpulet::metrics_api {
namespace {

constexpr std::int64_t kMilli = 1000;
constexpr double kLargest = 9e15;  // its thousandths fit into 64 bits

}  // namespace

std::optional<Metric> metric_by_name(std::string_view name) {
  const auto found = std::ranges::find(kMetrics, name, &MetricInfo::name);
  if (found == kMetrics.end()) return std::nullopt;
  return found->metric;
}

std::string quantity(double value) {
  const auto milli = std::llround(std::clamp(value, 0.0, kLargest) * kMilli);
  if (milli % kMilli == 0) return std::to_string(milli / kMilli);
  return std::to_string(milli) + "m";
}

}  // namespace gpulet::metrics_api
