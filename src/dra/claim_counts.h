// Counts of what the kubelet asked of this node, for its metrics.
//
// Source of names and of the bounds from 0.05 s: the metrics of NVIDIA's DRA driver (its pull request 964).
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::dra {

// Upper bounds of durations, in seconds. NVIDIA's begin at 0.05 and end at 12.8.
inline constexpr std::array<double, 13> kDurationBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.2, 0.4,
                                                           0.8,   1.6,  3.2,   6.4,  12.8, 25.6};

// Claims that were prepared, or that were unprepared.
struct OperationCounts {
  // The number of those that succeeded, by their duration: up to each bound, then longer.
  std::array<std::uint64_t, kDurationBounds.size() + 1> durations{};
  Duration time{};  // of all that succeeded
  std::map<Code, std::uint64_t> errors{};

  void count_result(const std::optional<Code>& error, Duration took) {
    if (error) {
      ++errors[*error];
      return;
    }
    const auto bound = std::ranges::lower_bound(kDurationBounds, std::chrono::duration<double>(took).count());
    ++durations[static_cast<std::size_t>(bound - kDurationBounds.begin())];
    time += took;
  }
};

struct ClaimCounts {
  OperationCounts prepare, unprepare;
  std::size_t preparing = 0;  // claims that are being prepared now
};

}  // namespace gpulet::dra
