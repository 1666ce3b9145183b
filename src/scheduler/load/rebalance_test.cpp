#include "scheduler/load/rebalance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace gpulet::scheduler {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kResource = "nvidia.com/gpu.shared";

Time at(Duration since_start) { return Time(std::chrono::hours(1) + since_start); }

RebalancePod busy_pod(const std::string& name, double busy, std::int64_t priority = 0) {
  RebalancePod pod;
  pod.pod = "ns/" + name;
  pod.priority = priority;
  pod.resource = kResource;
  pod.busy = busy;
  pod.day = flat_curve(static_cast<unsigned>(busy), 10);
  return pod;
}

RebalanceGpu gpu_with(const std::string& name, double busy, std::vector<RebalancePod> pods, unsigned free) {
  RebalanceGpu gpu;
  gpu.gpu = name;
  gpu.busy = busy;
  gpu.later = busy;
  gpu.free[kResource] = free;
  for (const auto& pod : pods) gpu.day = gpu.day + pod.day;
  gpu.pods = std::move(pods);
  return gpu;
}

// GPU "a" with these Pods has been hot for `hot`; "b" is idle.
class Rebalance : public testing::Test {
 protected:
  Rebalance() { policy_.enabled = true; }

  void use_pods(std::vector<RebalancePod> pods) {
    gpus_ = {gpu_with("a", 100, std::move(pods), 0), gpu_with("b", 0, {}, 4)};
  }
  void make_hot(Duration from, Duration until) {
    for (Duration now = from; now <= until; now += seconds(30))
      rebalancer_.add_sample("a", 100, policy_, at(now));
  }
  RebalanceDecision decide(Duration now = minutes(10)) {
    make_hot(Duration::zero(), now);
    return rebalancer_.decide(gpus_, policy_, at(now));
  }
  // The Pod to ask; else why not.
  std::string asked(Duration now = minutes(10)) {
    const auto decision = decide(now);
    if (decision.move) return gpus_[decision.move->gpu].pods[decision.move->pod].pod;
    return decision.kept.empty() ? "" : decision.kept.front();
  }

  RebalancePolicy policy_;
  Rebalancer rebalancer_;
  std::vector<RebalanceGpu> gpus_;
};

TEST_F(Rebalance, AsksTheLowestPriorityOfAHotGpu) {
  use_pods({busy_pod("high", 60, 1000), busy_pod("low", 40, -5)});
  const auto decision = decide();
  ASSERT_TRUE(decision.move);
  EXPECT_EQ(decision.move->gpu, 0u);
  EXPECT_EQ(decision.move->pod, 1u);
  EXPECT_EQ(decision.move->target, 1u);
  EXPECT_EQ(decision.move->reason, "a has been above 95 % for 10m; b has room for its 40 %");
}

TEST_F(Rebalance, AsksNobodyWhileItIsOffOrTheGpuIsNotHotForLong) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  EXPECT_EQ(asked(minutes(10) - seconds(30)), "");
  policy_.enabled = false;
  EXPECT_EQ(asked(), "");
}

TEST_F(Rebalance, OneSampleBelowTheThresholdStartsAgain) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  make_hot(Duration::zero(), minutes(9));
  rebalancer_.add_sample("a", 94.9, policy_, at(minutes(9) + seconds(15)));
  make_hot(minutes(9) + seconds(30), minutes(19));
  EXPECT_FALSE(rebalancer_.decide(gpus_, policy_, at(minutes(19))).move);
  make_hot(minutes(19), minutes(20));
  EXPECT_TRUE(rebalancer_.decide(gpus_, policy_, at(minutes(20))).move);
}

// A failed sample says nothing; without samples for long nothing is known of the time between.
TEST_F(Rebalance, UnknownUseIsNeitherHotNorCool) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  make_hot(Duration::zero(), minutes(9));
  rebalancer_.add_sample("a", std::nullopt, policy_, at(minutes(9) + seconds(15)));
  make_hot(minutes(10), minutes(10));
  EXPECT_TRUE(rebalancer_.decide(gpus_, policy_, at(minutes(10))).move);
  EXPECT_FALSE(rebalancer_.decide(gpus_, policy_, at(minutes(21))).move) << "no sample for 11 minutes";
  make_hot(minutes(21), minutes(21));
  EXPECT_FALSE(rebalancer_.decide(gpus_, policy_, at(minutes(21))).move);
}

TEST_F(Rebalance, LeavesAGpuThatIsForecastToCool) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  gpus_[0].later = 84;
  EXPECT_EQ(asked(), "a has been above 95 % for 10m; its forecast cools to 84 %");
  gpus_[0].later = 86;
  EXPECT_EQ(asked(), "ns/y");
  gpus_[0].later = std::nullopt;
  EXPECT_EQ(asked(), "ns/y") << "without a forecast the measurement decides";
}

TEST_F(Rebalance, LeavesAGpuThatIsNotShared) {
  use_pods({busy_pod("alone", 100)});
  EXPECT_THAT(asked(), HasSubstr("no two Pods share it"));
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  gpus_[0].busy.reset();
  EXPECT_THAT(asked(), HasSubstr("its present use is unknown"));
  gpus_[0].busy = 100;
  gpus_[0].waits = "ns/x is terminating";
  EXPECT_THAT(asked(), HasSubstr("ns/x is terminating"));
  gpus_[0].is_usable = false;
  EXPECT_THAT(asked(), HasSubstr("it is not shared"));
}

TEST_F(Rebalance, OfEqualPriorityMovesTheLeastThatIsEnough) {
  use_pods({busy_pod("big", 60), busy_pod("small", 8), busy_pod("middle", 32)});
  EXPECT_EQ(asked(), "ns/small");
}

TEST_F(Rebalance, MovesTheLargestIfNoneIsEnough) {
  policy_.threshold_percent = 90;
  use_pods({busy_pod("x", 5), busy_pod("y", 9), busy_pod("z", 7)});
  EXPECT_EQ(asked(), "ns/y");
}

TEST_F(Rebalance, MovesTheYoungestOfEqualPods) {
  use_pods({busy_pod("old", 50), busy_pod("young", 50), busy_pod("older", 50)});
  gpus_[0].pods[0].created = 200;
  gpus_[0].pods[1].created = 300;
  gpus_[0].pods[2].created = 100;
  EXPECT_EQ(asked(), "ns/young");
}

TEST_F(Rebalance, NeverAsksAPodThatStays) {
  use_pods({busy_pod("agent", 60, -10), busy_pod("service", 40, 5)});
  gpus_[0].pods[0].stays = "a DaemonSet Pod, which would return to this node";
  EXPECT_EQ(asked(), "ns/service") << "a Pod that stays keeps no other";
  gpus_[0].pods[1].stays = "a Pod without an owner, which nothing would restart";
  EXPECT_THAT(asked(), HasSubstr("ns/agent is a DaemonSet Pod, which would return to this node"));
}

TEST_F(Rebalance, PodsThatUseNothingNeitherMoveNorCount) {
  use_pods({busy_pod("idle", 4, -10), busy_pod("service", 40, 5), busy_pod("other", 56, 9)});
  EXPECT_EQ(asked(), "ns/service");
}

TEST_F(Rebalance, APodOfUnknownLoadStaysAndKeepsThoseOfHigherPriority) {
  use_pods({busy_pod("unknown", 40, 1), busy_pod("service", 60, 5)});
  gpus_[0].pods[0].busy = std::nullopt;
  EXPECT_THAT(asked(), HasSubstr("the load of ns/unknown is unknown"));
  gpus_[0].pods[0].priority = 5;
  EXPECT_EQ(asked(), "ns/service");
}

TEST_F(Rebalance, NeverAsksAHigherPriorityBecauseTheLowestHasNoRoom) {
  use_pods({busy_pod("low", 90, 1), busy_pod("high", 10, 5)});
  gpus_[1].day = flat_curve(20, 0);
  gpus_[1].busy = 20;
  EXPECT_EQ(asked(),
            "a has been above 95 % for 10m; no other GPU of the node has room for the 90 % of ns/low");
}

TEST_F(Rebalance, NeedsAnotherGpuThatStaysBelowTheThreshold) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  const auto idle = gpus_[1];
  const auto expect_no_room = [&](const char* why) {
    EXPECT_THAT(asked(), HasSubstr("no other GPU of the node has room")) << why;
    gpus_[1] = idle;
  };
  gpus_[1].free[kResource] = 0;
  expect_no_room("no free share");
  gpus_[1].free = {{"nvidia.com/gpu", 4}};
  expect_no_room("only shares of another resource");
  gpus_[1].busy = std::nullopt;
  expect_no_room("its use is unknown");
  gpus_[1].busy = 70;
  expect_no_room("hot with it now");
  gpus_[1].day.busy[3] = 70;
  expect_no_room("hot with it from 9 to 12 h");
  gpus_[1].day.memory = 95;
  expect_no_room("no memory for it");
  gpus_[1].is_usable = false;
  expect_no_room("faulty, or not shared");
  gpus_.push_back(idle);
  gpus_[1].busy = 10;
  gpus_[2].gpu = "c";
  const auto decision = decide();
  ASSERT_TRUE(decision.move);
  EXPECT_EQ(decision.move->target, 2u) << "the coolest";
}

TEST_F(Rebalance, TheTargetIsWhatThePlacementWouldChoose) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  gpus_.push_back(gpus_[1]);
  gpus_[2].gpu = "c";
  for (auto& pod : gpus_[0].pods) pod.successor = 2;
  EXPECT_EQ(decide().move->target, 2u) << "not the first of equal ones";
  gpus_[2].busy = 90;
  EXPECT_THAT(asked(), HasSubstr("no other GPU of the node has room")) << "though b has";
  for (auto& pod : gpus_[0].pods) pod.successor = 0;
  EXPECT_THAT(asked(), HasSubstr("the node's placement would give the same GPU to the successor of ns/x"));
}

TEST_F(Rebalance, OneAtATimeAndTheNextAfterNewMeasurements) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  EXPECT_EQ(asked(), "ns/y");
  rebalancer_.on_move_started();
  EXPECT_EQ(asked(minutes(30)), "") << "until the Pod has gone";
  rebalancer_.on_move_ended(at(minutes(31)));
  EXPECT_EQ(asked(minutes(40)), "") << "it has been hot for 9 minutes since then";
  EXPECT_EQ(asked(minutes(41)), "ns/y");
}

TEST_F(Rebalance, StartsWithTheGpuThatIsHotForLongest) {
  use_pods({busy_pod("x", 60), busy_pod("y", 40)});
  auto other = gpu_with("0", 100, {busy_pod("v", 60), busy_pod("w", 40)}, 0);
  gpus_.insert(gpus_.begin(), other);
  for (Duration now = minutes(1); now <= minutes(15); now += seconds(30))
    rebalancer_.add_sample("0", 100, policy_, at(now));
  EXPECT_EQ(decide(minutes(15)).move->gpu, 1u);
  gpus_[1].later = 20;
  const auto decision = decide(minutes(15));
  EXPECT_EQ(decision.move->gpu, 0u) << "or the next that may be relieved";
  EXPECT_THAT(decision.kept, ElementsAre(HasSubstr("its forecast cools")));
}

// Random nodes, minute by minute: whatever their load, one Pod at a time moves, none of a higher priority
// before a lower, and none without somewhere to go.
TEST(RebalanceProperties, HoldForRandomNodes) {
  std::mt19937_64 random(1);
  const auto below = [&](std::uint64_t count) { return random() % count; };
  std::size_t moves = 0;
  for (int run = 0; run < 400; ++run) {
    RebalancePolicy policy;
    policy.enabled = true;
    policy.hot_for = minutes(1 + below(5));
    Rebalancer rebalancer;
    std::optional<Duration> moving_until;
    std::optional<Duration> ended;
    for (Duration now{}; now < minutes(40); now += minutes(1)) {
      if (moving_until && now >= *moving_until) {
        rebalancer.on_move_ended(at(now));
        ended = now;
        moving_until.reset();
      }
      std::vector<RebalanceGpu> gpus;
      for (std::size_t index = 0; index < 1 + static_cast<std::size_t>(run) % 4; ++index) {
        std::vector<RebalancePod> pods;
        for (auto left = below(4); left > 0; --left) {
          auto pod = busy_pod("p" + std::to_string(pods.size()), static_cast<double>(below(70)),
                              static_cast<std::int64_t>(below(3)));
          if (below(6) == 0) pod.busy.reset();
          if (below(6) == 0) pod.stays = "a static Pod";
          pod.shares = 1 + static_cast<unsigned>(below(2));
          pods.push_back(std::move(pod));
        }
        const double busy = below(3) != 0 ? 100 : static_cast<double>(below(100));
        gpus.push_back(
            gpu_with(std::to_string(index), busy, std::move(pods), static_cast<unsigned>(below(3))));
        if (below(8) == 0) gpus.back().busy.reset();
        rebalancer.add_sample(gpus.back().gpu, gpus.back().busy, policy, at(now));
      }
      const auto decision = rebalancer.decide(gpus, policy, at(now));
      if (!decision.move) continue;
      ++moves;
      ASSERT_FALSE(moving_until) << "one at a time";
      ASSERT_TRUE(!ended || now - *ended >= policy.hot_for) << "measured anew";
      const auto& from = gpus[decision.move->gpu];
      const auto& pod = from.pods[decision.move->pod];
      ASSERT_GE(from.pods.size(), 2u);
      ASSERT_TRUE(pod.busy);
      ASSERT_TRUE(pod.stays.empty());
      for (const auto& other : from.pods) {
        const bool counts = other.stays.empty() && (!other.busy || *other.busy >= kMinMovedPercent);
        ASSERT_TRUE(!counts || other.priority >= pod.priority) << "the lowest priority first";
      }
      const auto& target = gpus[decision.move->target];
      ASSERT_NE(decision.move->target, decision.move->gpu);
      ASSERT_GE(target.free.at(kResource), pod.shares);
      ASSERT_LT(*target.busy + *pod.busy, policy.threshold_percent);
      ASSERT_LT((target.day + pod.day).peak(), policy.threshold_percent);
      rebalancer.on_move_started();
      moving_until = now + minutes(1 + below(5));
    }
  }
  EXPECT_GT(moves, 200u) << "nodes that ask nothing of the rule";
}

}  // namespace
}  // namespace gpulet::scheduler
