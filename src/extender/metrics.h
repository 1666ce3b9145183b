// The extender's own metrics in Prometheus' format.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "base/loop.h"
#include "scheduler/core/decision.h"

namespace gpulet::extender {

// Upper bounds of the histogram buckets in microseconds.
inline constexpr std::array<std::uint64_t, 12> kBucketBoundsMicros = {
    50, 100, 250, 500, 1'000, 2'500, 5'000, 10'000, 25'000, 50'000, 100'000, 250'000};

class Histogram {
 public:
  void record_duration(Duration took);
  // Samples with `labels` ("verb=\"filter\""), named after the family.
  std::string histogram_text(const std::string& family, const std::string& labels) const;

 private:
  std::array<std::uint64_t, kBucketBoundsMicros.size()> counts_{};  // per bucket, not cumulative
  std::uint64_t count_ = 0;
  std::chrono::duration<double> sum_{};
};

struct ExtenderMetrics {
  Histogram filter, prioritize;
  std::uint64_t passed = 0, unpublished = 0, not_scored = 0;  // nodes
  std::map<scheduler::RejectReason, std::uint64_t> rejected;  // nodes
  std::uint64_t unschedulable = 0;                            // filter requests for which no node passed
  std::uint64_t bad_requests = 0, malformed = 0, events = 0;
};

struct ClusterSizes {
  std::size_t nodes = 0, pods = 0, pools = 0, kinds = 0;
  std::uint64_t lists = 0, objects_rejected = 0;
  bool ready = false;
};

// Prometheus' text format 0.0.4.
std::string metrics_text(const ExtenderMetrics& numbers, const ClusterSizes& sizes);

}  // namespace gpulet::extender
