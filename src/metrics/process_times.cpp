#include "metrics/process_times.h"

#include <algorithm>

namespace gpulet::metrics {
namespace {

// Of the driver's utilisation samples: from a sixth of a second to a second.
constexpr std::uint64_t kShortestPeriodUs = 10'000;
constexpr std::uint64_t kLongestPeriodUs = 1'000'000;

}  // namespace

std::map<unsigned, double> mean_times(std::span<const nvml::ProcessUtilization> samples,
                                      std::uint64_t since_us) {
  std::map<unsigned, double> times;
  std::map<unsigned, std::uint64_t> counts;
  std::uint64_t newest = 0, period = 0, most = 1;
  const nvml::ProcessUtilization* before = nullptr;
  for (const auto& sample : samples) {  // by process and time
    newest = std::max(newest, sample.when_us);
    most = std::max(most, ++counts[sample.pid]);
    const auto gap = before != nullptr && before->pid == sample.pid ? sample.when_us - before->when_us : 0;
    if (gap >= kShortestPeriodUs && (period == 0 || gap < period)) period = gap;
    before = &sample;
  }
  if (since_us == 0) {
    // What the driver still keeps from before the first read is long past.
    for (const auto& sample : samples) {
      if (newest - sample.when_us < kLongestPeriodUs) times[sample.pid] = sample.sm;
    }
    return times;
  }
  const std::uint64_t periods = std::max(most, period == 0 ? 1 : (newest - since_us) / period);
  for (const auto& sample : samples) times[sample.pid] += sample.sm / static_cast<double>(periods);
  return times;
}

}  // namespace gpulet::metrics
