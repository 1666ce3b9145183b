#include "sim/schedule/load_simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace gpulet::scheduler {
namespace {

LoadRunOptions small(const std::string& policy, std::uint64_t seed) {
  LoadRunOptions options;
  options.policy = policy;
  options.seed = seed;
  options.nodes = 12;
  options.days = 12;
  return options;
}

LoadRunResult run_load(const LoadRunOptions& options) {
  auto result = simulate_load(options);
  EXPECT_TRUE(result) << (result ? "" : result.error().full_message());
  return result ? *result : LoadRunResult{};
}

// As in the extender: GPU forecasts are known, future tasks are not.
TEST(LoadSimulator, LoadAwarePlacementKeepsGpusCoolerThanSpread) {
  double spread = 0;
  double aware = 0;
  for (const std::uint64_t seed : {1, 2, 3}) {
    spread += run_load(small("spread", seed)).above_95 / 3;
    aware += run_load(small("default", seed)).above_95 / 3;
  }
  EXPECT_GT(spread, 0.01) << "a workload that asks nothing of a policy";
  EXPECT_LT(aware, 0.9 * spread);
}

// Much better on every seed if the services' loads are known.
TEST(LoadSimulator, KnownServicesHelpMore) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const LoadRunResult spread = run_load(small("spread", seed));
    for (const char* policy : {"default", "load"}) {
      LoadRunOptions options = small(policy, seed);
      options.known_services = true;
      const LoadRunResult aware = run_load(options);
      EXPECT_LT(aware.above_95, 0.65 * spread.above_95) << policy << ", seed " << seed;
      EXPECT_LT(aware.unserved, 0.65 * spread.unserved) << policy << ", seed " << seed;
      EXPECT_NEAR(aware.allocated, spread.allocated, 0.01) << "the same work";
      EXPECT_GE(aware.mean_busy, spread.mean_busy) << "more of it done";
    }
  }
}

// Whatever the policy, and more is gained than the moved tasks lose while they restart.
TEST(LoadSimulator, RebalancingLowersHotTime) {
  for (const char* policy : {"default", "spread"}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      LoadRunOptions options = small(policy, seed);
      const LoadRunResult without = run_load(options);
      options.rebalance = true;
      const LoadRunResult with = run_load(options);
      EXPECT_EQ(without.moves, 0u);
      EXPECT_EQ(without.restarting, 0);
      EXPECT_GT(with.moves, 0u);
      EXPECT_LT(with.above_95, 0.8 * without.above_95) << policy << ", seed " << seed;
      EXPECT_LT(with.unserved + with.restarting, without.unserved) << policy << ", seed " << seed;
      EXPECT_NEAR(with.allocated, without.allocated, 0.01) << "the same work";
    }
  }
}

TEST(LoadSimulator, IsDeterministic) {
  LoadRunOptions options = small("default", 4);
  options.nodes = 3;
  options.days = 3;
  const LoadRunResult once = run_load(options);
  const LoadRunResult again = run_load(options);
  EXPECT_EQ(once.above_95, again.above_95);
  EXPECT_EQ(once.placements, again.placements);
  options.seed = 5;
  EXPECT_NE(run_load(options).mean_busy, once.mean_busy);
}

TEST(LoadSimulator, SharesAreBetweenZeroAndOne) {
  for (const char* policy : {"binpack", "random"}) {
    LoadRunOptions options = small(policy, 1);
    options.nodes = 2;
    options.gpus = 3;
    options.days = 3;
    std::vector<double> reports;
    options.progress = [&](double part) { reports.push_back(part); };
    const LoadRunResult result = run_load(options);
    EXPECT_EQ(reports.size(), 3u);
    EXPECT_EQ(reports.back(), 1);
    EXPECT_LE(result.above_95, result.hottest);
    EXPECT_LE(result.hottest, 1);
    EXPECT_GT(result.mean_busy, 0.2);
    EXPECT_LT(result.mean_busy, 1);
    EXPECT_GT(result.allocated, 0.5);
    EXPECT_LE(result.allocated, 1) << "no GPU holds more than it has";
    EXPECT_GT(result.placements, 20u);
  }
}

TEST(LoadSimulator, ReportsNumbersOutOfRange) {
  const auto error_of = [](LoadRunOptions options) {
    const auto result = simulate_load(options);
    EXPECT_FALSE(result);
    return result ? "" : result.error().message();
  };
  LoadRunOptions options = small("default", 1);
  options.days = 1;
  EXPECT_EQ(error_of(options), "the number of days is 1, expected 2 to 366");
  options = small("default", 1);
  options.nodes = 0;
  EXPECT_EQ(error_of(options), "the number of nodes is 0, expected 1 to 2000");
  options = small("default", 1);
  options.gpus = 17;
  EXPECT_EQ(error_of(options), "the number of GPUs is 17, expected 1 to 16");
  EXPECT_THAT(error_of(small("none", 1)), testing::HasSubstr("unknown policy 'none'"));
}

}  // namespace
}  // namespace gpulet::scheduler
