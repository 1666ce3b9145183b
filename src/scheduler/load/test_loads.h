// Synthetic load curves for tests and benchmarks: percent of a GPU's time by the second, from a seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

namespace gpulet::scheduler::loads {

inline constexpr std::int64_t kMinute = 60, kHour = 3600, kDay = 24 * kHour;

// A service: busiest at `peak_hour`, quiet half a day later, `weekend` times that on Saturdays and Sundays
// (days 5 and 6).
struct Service {
  double low = 10;
  double high = 80;
  double peak_hour = 14;
  double weekend = 1;
  double noise = 5;

  double mean(std::int64_t second) const {
    const double hour = static_cast<double>(second % kDay) / kHour;
    const double wave = 0.5 + 0.5 * std::cos((hour - peak_hour) / 12 * std::numbers::pi);
    const double day = low + (high - low) * wave;
    return second / kDay % 7 >= 5 ? weekend * day : day;
  }
  double draw_sample(std::int64_t second, std::mt19937_64& random) const {
    // A sum of uniform numbers is normal enough, and the same on every platform.
    double sum = 0;
    for (int at = 0; at < 6; ++at) sum += static_cast<double>(random() % 1'000'001) / 1e6 - 0.5;
    return std::clamp(mean(second) + noise * std::numbers::sqrt2 * sum, 0.0, 100.0);
  }
};

}  // namespace gpulet::scheduler::loads
