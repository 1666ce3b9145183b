// How long to wait before the next try of something that failed: exponential with full jitter above half.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/loop.h"

namespace gpulet {

struct BackoffLimits {
  Duration first;    // the first wait, at the most
  Duration longest;  // no wait is longer
};

// 32 bytes: one is kept for each Pod, node and connection that fails, where a Mersenne Twister is 2.5 KiB.
class Backoff {
 public:
  // Two that start at once should have two seeds; seeds that follow one another do.
  Backoff(BackoffLimits limits, std::uint64_t seed) : limits_(limits), next_(limits.first), random_(seed) {}

  // The next wait: between half and the whole of a step that doubles each time up to `longest`.
  Duration next() {
    const Duration step = next_;
    next_ = std::min(next_ * 2, limits_.longest);
    const auto half = step.count() / 2;
    const auto choices = static_cast<std::uint64_t>(step.count() - half) + 1;
    return Duration(half + static_cast<std::int64_t>(random() % choices));
  }
  // After a success: the next failure starts from `first` again.
  void reset() { next_ = limits_.first; }

 private:
  // SplitMix64, of which also neighbouring seeds give unrelated numbers. Source: Steele, Lea and Flood, "Fast
  // splittable pseudorandom number generators", OOPSLA 2014.
  std::uint64_t random() {
    std::uint64_t mixed = (random_ += 0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }

  BackoffLimits limits_;
  Duration next_;
  std::uint64_t random_;
};

}  // namespace gpulet
