// How long to wait before the next try of something that failed: exponential with full jitter above half.
#pragma once

#include <random>

#include "base/loop.h"

namespace gpulet {

struct BackoffLimits {
  Duration first;    // the first wait, at the most
  Duration longest;  // no wait is longer
};

class Backoff {
 public:
  Backoff(BackoffLimits limits, std::uint64_t seed) : limits_(limits), next_(limits.first), random_(seed) {}

  // The next wait: between half and the whole of a step that doubles each time up to `longest`.
  Duration next() {
    const Duration step = next_;
    next_ = std::min(next_ * 2, limits_.longest);
    std::uniform_int_distribution<std::int64_t> jitter(step.count() / 2, step.count());
    return Duration(jitter(random_));
  }
  // After a success: the next failure starts from `first` again.
  void reset() { next_ = limits_.first; }

 private:
  BackoffLimits limits_;
  Duration next_;
  std::mt19937_64 random_;
};

}  // namespace gpulet
