#include "agent/observe/controller_memory.h"

#include <gtest/gtest.h>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using scheduler::flat_curve;

const WallTime kSeenAt(std::chrono::seconds(1'767'571'200));  // 2026-01-05T00:00:00Z
constexpr std::int64_t kFirstHour = 1'767'571'200 / 3600;

TEST(ControllerMemory, IsTheMeanOfThePods) {
  ControllerMemory memory;
  memory.learn_loads(
      {{"a/web", flat_curve(40, 10), 30}, {"a/web", flat_curve(60, 30), 300}, {"a/db", {}, 24}}, kSeenAt);
  ASSERT_NE(memory.find_load("a/web"), nullptr);
  EXPECT_EQ(*memory.find_load("a/web"),
            (scheduler::ControllerLoad{"a/web", flat_curve(50, 20), 300, kFirstHour}));
  EXPECT_EQ(memory.known_loads().size(), 2U);
  memory.learn_loads({{"a/web", flat_curve(100, 0), 24}, {"a/web", flat_curve(0, 0), 1}}, kSeenAt);
  EXPECT_EQ(memory.find_load("a/web")->curve, flat_curve(96, 0)) << "a young Pod counts by its hours";
}

TEST(ControllerMemory, KnowsAControllerAfterADay) {
  ControllerMemory memory;
  memory.learn_loads({{"a/web", flat_curve(40, 10), 23}, {"a/new", flat_curve(40, 10), 0}}, kSeenAt);
  EXPECT_EQ(memory.find_load("a/web"), nullptr);
  EXPECT_TRUE(memory.known_loads().empty());
  memory.learn_loads({{"a/web", flat_curve(40, 10), 24}}, kSeenAt + 1h);
  EXPECT_EQ(memory.known_loads().size(), 1U);
}

TEST(ControllerMemory, OutlivesThePodsForEightDays) {
  ControllerMemory memory;
  memory.learn_loads({{"a/web", flat_curve(40, 10), 24}}, kSeenAt);
  memory.learn_loads({}, kSeenAt + 8 * 24h);
  EXPECT_NE(memory.find_load("a/web"), nullptr);
  memory.learn_loads({}, kSeenAt + 8 * 24h + 1h);
  EXPECT_EQ(memory.find_load("a/web"), nullptr);
}

TEST(ControllerMemory, ForgetsTheLongestGoneBeyondItsLimit) {
  ControllerMemory memory;
  memory.learn_loads({{"a/gone", {}, 24}}, kSeenAt);
  std::vector<ControllerMemory::PodLoad> pods;
  for (std::size_t i = 0; i < scheduler::kMaxControllers; ++i)
    pods.push_back({"a/" + std::to_string(i), {}, 24});
  memory.learn_loads(pods, kSeenAt + 2h);
  EXPECT_EQ(memory.known_loads().size(), scheduler::kMaxControllers);
  EXPECT_EQ(memory.find_load("a/gone"), nullptr);
}

TEST(ControllerMemory, TakesWhatOthersKnowBetter) {
  ControllerMemory memory;
  memory.learn_loads({{"a/web", flat_curve(40, 10), 48}}, kSeenAt);
  memory.add_loads({{"a/web", flat_curve(1, 1), 24, kFirstHour}, {"a/db", flat_curve(5, 5), 24, kFirstHour}},
                   kSeenAt);
  EXPECT_EQ(memory.find_load("a/web")->curve, flat_curve(40, 10));
  EXPECT_EQ(memory.find_load("a/db")->curve, flat_curve(5, 5));
  memory.add_loads({{"a/web", flat_curve(70, 1), 480, kFirstHour}}, kSeenAt);
  EXPECT_EQ(memory.find_load("a/web")->curve, flat_curve(40, 10)) << "its Pods are here";
  memory.add_loads({{"a/web", flat_curve(70, 1), 480, kFirstHour + 1}}, kSeenAt);
  EXPECT_EQ(memory.find_load("a/web")->curve, flat_curve(70, 1));
  memory.add_loads({{"a/old", flat_curve(5, 5), 24, 0}}, kSeenAt);
  EXPECT_EQ(memory.find_load("a/old"), nullptr);
}

}  // namespace
}  // namespace gpulet::agent
