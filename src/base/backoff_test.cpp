#include "base/backoff.h"

#include <gtest/gtest.h>

#include <rapidcheck/gtest.h>
#include <array>
#include <set>

namespace gpulet {
namespace {

using namespace std::chrono_literals;

constexpr BackoffLimits kLimits{100ms, 10s};

RC_GTEST_PROP(BackoffWaits, AreAboveHalfOfAStepThatDoublesUpToTheLongest, (std::uint64_t seed)) {
  Backoff backoff(kLimits, seed);
  Duration step = kLimits.first;
  for (int i = 0; i < 12; ++i) {
    const auto wait = backoff.next();
    RC_ASSERT(wait >= step / 2);
    RC_ASSERT(wait <= step);
    step = std::min(step * 2, kLimits.longest);
  }
  backoff.reset();
  RC_ASSERT(backoff.next() <= kLimits.first);
}

RC_GTEST_PROP(BackoffWaits, OfNeighbouringSeedsFillTheirRangeEvenly, (std::uint64_t seed)) {
  // 1000 that begin at once: in each tenth of the range some 100, which is 9.5 deviations from 10 or 190.
  constexpr int kStarting = 1000, kTenths = 10;
  std::array<int, kTenths> counts{};
  for (int i = 0; i < kStarting; ++i) {
    const auto wait = Backoff(kLimits, seed + i).next() - kLimits.first / 2;
    ++counts.at(std::min<std::size_t>(wait * kTenths / (kLimits.first / 2), kTenths - 1));
  }
  for (const int count : counts) {
    RC_ASSERT(count > 10);
    RC_ASSERT(count < 190);
  }
}

TEST(BackoffWaits, OfAStepOfOneNanosecondOrNoneAreNotLonger) {
  Backoff one({1ns, 1ns}, 1), none({0ns, 0ns}, 1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_LE(one.next(), 1ns);
    EXPECT_EQ(none.next(), 0ns);
  }
}

}  // namespace
}  // namespace gpulet
