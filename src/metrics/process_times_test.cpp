#include "metrics/process_times.h"

#include <gtest/gtest.h>

#include <vector>

namespace gpulet::metrics {
namespace {

constexpr std::uint64_t kSecond = 1'000'000, kStart = 1'700'000'000 * kSecond;
using Times = std::map<unsigned, double>;

nvml::ProcessUtilization sample(unsigned pid, std::uint64_t after_us, unsigned sm) {
  return {pid, kStart + after_us, sm, 0, 0, 0};
}

TEST(ProcessTimes, TheMeanOfThePeriods) {
  // Each process has its own instant of the same period.
  EXPECT_EQ(mean_times(std::vector{sample(1, kSecond, 60), sample(1, 2 * kSecond, 80),
                                   sample(2, kSecond + 7, 10), sample(2, 2 * kSecond + 9, 20)},
                       kStart),
            (Times{{1, 70}, {2, 15}}));
  EXPECT_EQ(mean_times(std::vector{sample(1, kSecond, 60), sample(2, kSecond + 7, 10)}, kStart),
            (Times{{1, 60}, {2, 10}}));
  EXPECT_EQ(mean_times({}, kStart), Times{});
}

TEST(ProcessTimes, PeriodsInWhichAProcessDidNothing) {
  // Ten periods: one process in all of them, one in two.
  std::vector<nvml::ProcessUtilization> samples;
  for (unsigned i = 1; i <= 10; ++i) samples.push_back(sample(1, i * kSecond, 50));
  samples.push_back(sample(2, 4 * kSecond, 100));
  samples.push_back(sample(2, 5 * kSecond, 100));
  EXPECT_EQ(mean_times(samples, kStart), (Times{{1, 50}, {2, 20}}));
  // The GPU was idle until two periods before the last.
  EXPECT_EQ(mean_times(std::vector{sample(1, 9 * kSecond, 100), sample(1, 10 * kSecond, 100)}, kStart),
            (Times{{1, 20}}));
}

TEST(ProcessTimes, AtFirstOnlyWhatIsNew) {
  EXPECT_EQ(mean_times(std::vector{sample(1, 0, 90), sample(1, 10 * kSecond, 40), sample(2, 3 * kSecond, 70),
                                   sample(3, 10 * kSecond - 9, 30)},
                       0),
            (Times{{1, 40}, {3, 30}}));
}

TEST(ProcessTimes, SamplesThatAreTooNearAreNoPeriod) {
  EXPECT_EQ(mean_times(std::vector{sample(1, kSecond, 60), sample(1, kSecond + 1, 40)}, kStart),
            (Times{{1, 50}}));
}

}  // namespace
}  // namespace gpulet::metrics
