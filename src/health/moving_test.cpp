#include "health/moving.h"

#include <gtest/gtest.h>

#include "health/test_moving.h"

namespace gpulet::health {
namespace {

using Act = Decision::Act;
using enum FaultClass;
using std::chrono::hours;

struct Decided {
  Act act;
  std::optional<Time> at;
  std::string reason;
};

// The one decision about the one Pod.
Decided decide(const PodOnDevice& one, const DeviceStanding& device, const MovingPolicy& policy = on(),
               Time now = kStart) {
  const auto all = decide_moves({{device}, 8, ""}, std::span(&one, 1), policy, {}, now);
  EXPECT_EQ(all.size(), 1u);
  if (all.empty()) return {Act::kTell, {}, "none"};
  return {all[0].act, all[0].at, all[0].reason};
}

TEST(Grace, IsReadAsItIsWritten) {
  using Kind = Grace::Kind;
  const std::pair<const char*, Grace> rows[] = {
      {"stay", {Kind::kStay, {}}},
      {"evict", {Kind::kEvict, {}}},
      {"finish", {Kind::kFinish, {}}},
      {"finish=1s", {Kind::kFinish, seconds(1)}},
      {"finish=90s", {Kind::kFinish, seconds(90)}},
      {"finish=30m", {Kind::kFinish, minutes(30)}},
      {"finish=5h", {Kind::kFinish, hours(5)}},
      {"finish=30d", {Kind::kFinish, kMaxGrace}},
  };
  for (const auto& [words, grace] : rows) {
    const auto read = parse_grace(words);
    ASSERT_TRUE(read) << words;
    EXPECT_EQ(*read, grace) << words;
    EXPECT_EQ(text(grace), words);
  }
  for (const char* bad : {"", "Evict", "evict ", "finish=", "finish=0s", "finish=m", "finish=5", "finish=-5m",
                          "finish=31d", "finish=1w", "finish=99999999999999999999d",
                          "finish=18446744073709551615d", "finish=1.5h", "never"}) {
    const auto read = parse_grace(bad);
    ASSERT_FALSE(read) << bad;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
  }
}

TEST(Moving, IsOffByDefaultWhateverAPodSays) {
  auto asking = pod("train", {scope("GPU-0")});
  asking.annotation = "evict";
  const auto decided = decide(asking, broken(scope("GPU-0"), kLost), MovingPolicy{});
  EXPECT_EQ(decided.act, Act::kTell);
  EXPECT_NE(decided.reason.find("moving Pods is off"), std::string::npos);
}

TEST(Moving, EachClassHasTheGraceOfItsEffectUnlessItHasItsOwn) {
  struct Row {
    FaultClass fault_class;
    Act act;
    std::optional<Duration> after;
  };
  const Row rows[] = {
      {kXidReboot, Act::kEvict, {}},          {kLost, Act::kEvict, {}},
      {kXidReset, Act::kEvictAt, minutes(5)}, {kXidEcc, Act::kEvictAt, minutes(5)},
      {kSwitch, Act::kEvictAt, minutes(5)},   {kRecoveryDrain, Act::kFinish, {}},
      {kCordoned, Act::kFinish, {}},          {kDriverAway, Act::kTell, {}},
  };
  const Scope gpu = scope("GPU-0");
  for (const auto& [fault_class, act, after] : rows) {
    const auto decided = decide(pod("a", {gpu}), broken(gpu, fault_class));
    EXPECT_EQ(name(decided.act), name(act)) << rule_of(fault_class).name;
    EXPECT_EQ(decided.at, after ? std::optional(kStart + *after) : std::nullopt) << rule_of(fault_class).name;
  }
  MovingPolicy own = on();
  own.graces = {{kXidReset, {Grace::Kind::kEvict, {}}}, {kLost, {}}, {kCordoned, {Grace::Kind::kEvict, {}}}};
  EXPECT_EQ(decide(pod("a", {gpu}), broken(gpu, kXidReset), own).act, Act::kEvict);
  EXPECT_EQ(decide(pod("a", {gpu}), broken(gpu, kLost), own).act, Act::kTell);
  EXPECT_EQ(decide(pod("a", {gpu}), broken(gpu, kCordoned), own).act, Act::kEvict);
  EXPECT_EQ(decide(pod("a", {gpu}), broken(gpu, kXidEcc), own).act, Act::kEvictAt);
}

TEST(Moving, ADeadlineRunsFromTheFault) {
  const Scope gpu = scope("GPU-0");
  const auto device = broken(gpu, kXidReset);
  EXPECT_EQ(decide(pod("a", {gpu}), device, on(), kStart + minutes(5) - Duration(1)).act, Act::kEvictAt);
  EXPECT_EQ(decide(pod("a", {gpu}), device, on(), kStart + minutes(5)).act, Act::kEvict);
}

TEST(Moving, OnlyWhoHoldsWhatIsWithdrawnIsSpokenOf) {
  const Scope gi1 = scope("GPU-1", 1, 0), gi2 = scope("GPU-1", 2, 0);
  const std::vector<PodOnDevice> pods = {pod("on-gi1", {gi1}), pod("on-gi2", {gi2}),
                                         pod("on-0", {scope("GPU-0")}), pod("on-both", {scope("GPU-0"), gi1}),
                                         pod("on-none", {})};
  const auto names = [&](std::vector<DeviceStanding> devices) {
    std::vector<std::string> names;
    for (const auto& one : decide_moves({std::move(devices), 2, ""}, pods, on(), {}, kStart)) {
      names.push_back(one.name);
      EXPECT_EQ(one.act, Act::kEvict);
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names({broken(gi1, kLost), {gi2, {}}, {scope("GPU-0"), {}}}), (Names{"on-both", "on-gi1"}));
  EXPECT_EQ(names({broken(scope("GPU-1"), kLost)}), (Names{"on-both", "on-gi1", "on-gi2"}));
  EXPECT_EQ(names({broken(scope("GPU-0"), kThermal)}), Names{});
  MovingPolicy thermal = on();
  thermal.graces[kThermal] = {Grace::Kind::kEvict, {}};
  EXPECT_TRUE(decide_moves({{broken(scope("GPU-0"), kThermal)}, 2, ""}, pods, thermal, {}, kStart).empty());
}

TEST(Moving, OfSeveralFaultsTheOneThatAsksForMostDecides) {
  const Scope gpu = scope("GPU-0");
  auto device = broken(gpu, kRecoveryDrain);
  device.standing.faults.push_back(broken(gpu, kThermal).standing.faults[0]);
  device.standing.faults.push_back(broken(gpu, kXidReset, kStart - minutes(2)).standing.faults[0]);
  device.standing.faults.push_back(broken(gpu, kXidEcc).standing.faults[0]);
  const auto decided = decide(pod("a", {gpu}), device);
  EXPECT_EQ(decided.act, Act::kEvictAt);
  EXPECT_EQ(decided.at, kStart + minutes(3));
  // Proved, and every check passes: it is back before anybody could have moved.
  for (auto& fault : device.standing.faults) fault.due = kStart + seconds(30);
  const auto one = pod("a", {gpu});
  EXPECT_TRUE(decide_moves({{device}, 8, ""}, std::span(&one, 1), on(), {}, kStart).empty());
}

TEST(Moving, WhoWouldGainNothingIsToldOnly) {
  const Scope gpu = scope("GPU-0");
  const auto device = broken(gpu, kLost);
  auto mirror = pod("a", {gpu}, "Node");
  EXPECT_EQ(decide(mirror, device).act, Act::kTell);
  mirror = pod("a", {gpu});
  mirror.mirror = true;
  mirror.annotation = "evict";
  EXPECT_NE(decide(mirror, device).reason.find("static Pod"), std::string::npos);
  auto daemon = pod("a", {gpu}, "DaemonSet");
  daemon.annotation = "evict";
  EXPECT_EQ(decide(daemon, device).act, Act::kTell);
  auto bare = pod("a", {gpu}, "");
  EXPECT_EQ(decide(bare, device).act, Act::kTell);
  bare.namespace_annotation = "evict";
  EXPECT_EQ(decide(bare, device).act, Act::kTell);
  bare.annotation = "evict";
  EXPECT_EQ(decide(bare, device).act, Act::kEvict);
  MovingPolicy bare_too = on();
  bare_too.bare_pods = true;
  EXPECT_EQ(decide(pod("a", {gpu}, ""), device, bare_too).act, Act::kEvict);
}

TEST(Moving, ThePodsOwnWordGoesBeforeItsNamespacesAndThatBeforeThePolicy) {
  struct Row {
    std::optional<std::string> own, of_namespace;
    Act act;
    const char* says;
  };
  const Row rows[] = {
      {{}, {}, Act::kEvict, "the policy says evict"},
      {{}, "stay", Act::kTell, "its namespace's annotation says stay"},
      {"evict", "stay", Act::kEvict, "its annotation says evict"},
      {"finish", "evict", Act::kFinish, "its annotation says finish"},
      {"finish=10m", {}, Act::kEvictAt, "its annotation says finish=10m"},
      {"perhaps", "evict", Act::kTell, "its annotation gpulet.io/on-gpu-fault is not understood"},
      {{}, "perhaps", Act::kTell, "its namespace's annotation gpulet.io/on-gpu-fault is not understood"},
  };
  const Scope gpu = scope("GPU-0");
  for (const auto& [own, of_namespace, act, says] : rows) {
    auto one = pod("a", {gpu});
    one.annotation = own;
    one.namespace_annotation = of_namespace;
    const auto decided = decide(one, broken(gpu, kLost));
    EXPECT_EQ(name(decided.act), name(act)) << says;
    EXPECT_NE(decided.reason.find(says), std::string::npos) << decided.reason;
    // It is about faults: not an operator's cordon, nor the driver's being away.
    EXPECT_EQ(decide(one, broken(gpu, kCordoned)).act, Act::kFinish);
    EXPECT_EQ(decide(one, broken(gpu, kDriverAway)).act, Act::kTell);
  }
}

TEST(Moving, WhoIsLeavingIsNotAskedAgain) {
  const Scope gpu = scope("GPU-0");
  const std::vector<PodOnDevice> pods = {pod("a", {gpu}), pod("b", {gpu})};
  const MovingNode node{{broken(gpu, kLost)}, 8, ""};
  MovingLog log;
  auto all = decide_moves(node, pods, on(), log, kStart);
  ASSERT_EQ(all.size(), 2u);
  log.add(all[0], kStart);
  all = decide_moves(node, pods, on(), log, kStart + hours(1));
  EXPECT_EQ(all[0].act, Act::kLeaving);
  EXPECT_EQ(all[1].act, Act::kEvict);
  log.tidy(pods, on(), kStart + hours(1));
  EXPECT_EQ(log.entries().size(), 1u);  // it still holds it
  log.tidy({}, on(), kStart + minutes(5) - Duration(1));
  EXPECT_EQ(log.entries().size(), 1u);  // it still counts
  log.tidy({}, on(), kStart + minutes(5));
  EXPECT_TRUE(log.entries().empty());
  auto leaving = pods[0];
  leaving.leaving = true;
  EXPECT_EQ(decide(leaving, node.devices[0]).act, Act::kLeaving);
}

TEST(Moving, BeyondTheRateTheNextLeaveLaterTheLongestDueFirst) {
  std::vector<PodOnDevice> pods;
  for (const char* letter : {"d", "c", "b"}) pods.push_back(pod(letter, {scope("GPU-0")}));
  pods.push_back(pod("z", {scope("GPU-1")}));
  MovingPolicy policy = on();
  policy.rate = 2;
  policy.rate_window = minutes(1);
  const MovingNode node{
      {broken(scope("GPU-0"), kLost), broken(scope("GPU-1"), kLost, kStart - seconds(1))}, 8, ""};
  const auto all = decide_moves(node, pods, policy, {}, kStart);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[3].act, Act::kEvict);  // z
  EXPECT_EQ(all[0].act, Act::kEvict);  // b
  for (const auto i : {1u, 2u}) {
    EXPECT_EQ(all[i].act, Act::kEvictAt);
    EXPECT_EQ(all[i].at, kStart + minutes(1));
    EXPECT_NE(all[i].reason.find("no more than 2 leave the node within 1m"), std::string::npos)
        << all[i].reason;
  }
  policy.rate = 0;
  for (const auto& one : decide_moves(node, pods, policy, {}, kStart)) EXPECT_EQ(one.act, Act::kHold);
}

TEST(Moving, ManyBrokenGpusAreAFaultOfTheNode) {
  struct Row {
    unsigned gpus, broken, percent;
    Act act;
  };
  const Row rows[] = {{8, 1, 50, Act::kEvict}, {8, 4, 50, Act::kEvict},  {8, 5, 50, Act::kHold},
                      {1, 1, 50, Act::kEvict}, {2, 1, 50, Act::kEvict},  {2, 2, 50, Act::kHold},
                      {8, 1, 0, Act::kEvict},  {8, 8, 100, Act::kEvict}, {8, 8, 1000, Act::kEvict}};
  for (const auto& [gpus, count, percent, act] : rows) {
    MovingNode node{{}, gpus, ""};
    std::vector<PodOnDevice> pods;
    for (unsigned i = 0; i < count; ++i) {
      const Scope gpu = scope("GPU-" + std::to_string(i));
      node.devices.push_back(broken(gpu, kLost));
      pods.push_back(pod(std::to_string(i), {gpu}));
    }
    MovingPolicy policy = on();
    policy.breaker_percent = percent;
    for (const auto& one : decide_moves(node, pods, policy, {}, kStart)) EXPECT_EQ(one.act, act) << count;
    node.hold = "too many nodes of the cluster are broken";
    for (const auto& one : decide_moves(node, pods, policy, {}, kStart)) {
      EXPECT_EQ(one.act, Act::kHold);
      EXPECT_NE(one.reason.find(node.hold), std::string::npos) << one.reason;
    }
  }
}

TEST(Moving, TheBreakerCountsWhoWasMovedAndNoOperatorsWish) {
  const Scope last = scope("GPU-9");
  MovingLog log;
  MovingPolicy policy = on();
  policy.graces[kCordoned] = {Grace::Kind::kEvict, {}};
  Decision moved;
  for (int i = 0; i < 4; ++i) {
    moved.uid = "gone-" + std::to_string(i);
    moved.device = scope("GPU-" + std::to_string(i));
    moved.fault_class = kLost;
    log.add(moved, kStart);
  }
  const auto one = pod("a", {last});
  const auto act = [&](FaultClass fault_class, Time now) {
    return decide_moves({{broken(last, fault_class)}, 8, ""}, std::span(&one, 1), policy, log, now).at(0).act;
  };
  EXPECT_EQ(act(kLost, kStart + minutes(1)), Act::kHold);
  EXPECT_EQ(act(kCordoned, kStart + minutes(1)), Act::kEvict);
  EXPECT_EQ(act(kLost, kStart + minutes(5)), Act::kEvict);
  MovingLog wishes;
  moved.fault_class = kCordoned;
  for (int i = 0; i < 8; ++i) {
    moved.uid = "gone-" + std::to_string(i);
    moved.device = scope("GPU-" + std::to_string(i));
    wishes.add(moved, kStart);
  }
  log = wishes;
  EXPECT_EQ(act(kLost, kStart), Act::kEvict);
}

TEST(MovingLog, WhoWasNotAskedAfterAllIsDecidedAnew) {
  const MovingNode node{{broken({DeviceUuid("GPU-0")}, FaultClass::kLost)}, 8};
  const std::vector<PodOnDevice> pods{pod("train", {{DeviceUuid("GPU-0")}})};
  MovingLog log;
  const auto first = decide_moves(node, pods, on(), log, kStart);
  ASSERT_EQ(first.front().act, Decision::Act::kEvict);
  log.add(first.front(), kStart);
  EXPECT_EQ(decide_moves(node, pods, on(), log, kStart).front().act, Decision::Act::kLeaving);
  log.take_back("uid-train");
  EXPECT_TRUE(log.entries().empty());
  EXPECT_EQ(decide_moves(node, pods, on(), log, kStart), first);
}

}  // namespace
}  // namespace gpulet::health
