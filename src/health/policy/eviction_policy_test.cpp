#include "health/policy/eviction_policy.h"

#include <gtest/gtest.h>

#include "health/policy/test_eviction.h"

namespace gpulet::health {
namespace {

using Act = EvictionDecision::Act;
using enum FaultClass;
using std::chrono::hours;

struct Decided {
  Act act;
  std::optional<Time> at;
  std::string reason;
};

// The one decision about the one Pod.
Decided decide_one(const PodOnDevice& one, const FaultyDevice& device,
                   const EvictionPolicy& policy = enabled_policy(), Time now = kStart) {
  const auto all = decide_evictions({{device}, 8, ""}, std::span(&one, 1), policy, {}, now);
  EXPECT_EQ(all.size(), 1u);
  if (all.empty()) return {Act::kNotify, {}, "none"};
  return {all[0].act, all[0].at, all[0].reason};
}

TEST(Grace, FormatsAndParses) {
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
    EXPECT_EQ(grace_text(grace), words);
  }
  for (const char* bad : {"", "Evict", "evict ", "finish=", "finish=0s", "finish=m", "finish=5", "finish=-5m",
                          "finish=31d", "finish=1w", "finish=99999999999999999999d",
                          "finish=18446744073709551615d", "finish=1.5h", "never"}) {
    const auto read = parse_grace(bad);
    ASSERT_FALSE(read) << bad;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
  }
}

TEST(EvictionPolicy, IsOffByDefaultWhateverTheAnnotation) {
  auto asking = pod_on_devices("train", {make_scope("GPU-0")});
  asking.annotation = "evict";
  const auto decided = decide_one(asking, faulty_device(make_scope("GPU-0"), kLost), EvictionPolicy{});
  EXPECT_EQ(decided.act, Act::kNotify);
  EXPECT_NE(decided.reason.find("eviction is disabled"), std::string::npos);
}

TEST(EvictionPolicy, ClassGraceOverridesEffectGrace) {
  struct Row {
    FaultClass fault_class;
    Act act;
    std::optional<Duration> after;
  };
  const Row rows[] = {
      {kXidReboot, Act::kEvict, {}},          {kLost, Act::kEvict, {}},
      {kXidReset, Act::kEvictAt, minutes(5)}, {kXidEcc, Act::kEvictAt, minutes(5)},
      {kSwitch, Act::kEvictAt, minutes(5)},   {kRecoveryDrain, Act::kFinish, {}},
      {kCordoned, Act::kFinish, {}},          {kDriverAway, Act::kNotify, {}},
  };
  const Scope gpu = make_scope("GPU-0");
  for (const auto& [fault_class, act, after] : rows) {
    const auto decided = decide_one(pod_on_devices("a", {gpu}), faulty_device(gpu, fault_class));
    EXPECT_EQ(enum_name(decided.act), enum_name(act)) << fault_rule(fault_class).name;
    EXPECT_EQ(decided.at, after ? std::optional(kStart + *after) : std::nullopt)
        << fault_rule(fault_class).name;
  }
  EvictionPolicy own = enabled_policy();
  own.class_graces = {
      {kXidReset, {Grace::Kind::kEvict, {}}}, {kLost, {}}, {kCordoned, {Grace::Kind::kEvict, {}}}};
  EXPECT_EQ(decide_one(pod_on_devices("a", {gpu}), faulty_device(gpu, kXidReset), own).act, Act::kEvict);
  EXPECT_EQ(decide_one(pod_on_devices("a", {gpu}), faulty_device(gpu, kLost), own).act, Act::kNotify);
  EXPECT_EQ(decide_one(pod_on_devices("a", {gpu}), faulty_device(gpu, kCordoned), own).act, Act::kEvict);
  EXPECT_EQ(decide_one(pod_on_devices("a", {gpu}), faulty_device(gpu, kXidEcc), own).act, Act::kEvictAt);
}

TEST(EvictionPolicy, ADeadlineCountsFromTheFault) {
  const Scope gpu = make_scope("GPU-0");
  const auto device = faulty_device(gpu, kXidReset);
  EXPECT_EQ(
      decide_one(pod_on_devices("a", {gpu}), device, enabled_policy(), kStart + minutes(5) - Duration(1)).act,
      Act::kEvictAt);
  EXPECT_EQ(decide_one(pod_on_devices("a", {gpu}), device, enabled_policy(), kStart + minutes(5)).act,
            Act::kEvict);
}

TEST(EvictionPolicy, OnlyHoldersOfWithdrawnDevicesGetADecision) {
  const Scope gi1 = make_scope("GPU-1", 1, 0), gi2 = make_scope("GPU-1", 2, 0);
  const std::vector<PodOnDevice> pods = {pod_on_devices("on-gi1", {gi1}), pod_on_devices("on-gi2", {gi2}),
                                         pod_on_devices("on-0", {make_scope("GPU-0")}),
                                         pod_on_devices("on-both", {make_scope("GPU-0"), gi1}),
                                         pod_on_devices("on-none", {})};
  const auto names = [&](std::vector<FaultyDevice> devices) {
    std::vector<std::string> names;
    for (const auto& one :
         decide_evictions({std::move(devices), 2, ""}, pods, enabled_policy(), {}, kStart)) {
      names.push_back(one.name);
      EXPECT_EQ(one.act, Act::kEvict);
    }
    return names;
  };
  using MigProfiles = std::vector<std::string>;
  EXPECT_EQ(names({faulty_device(gi1, kLost), {gi2, {}}, {make_scope("GPU-0"), {}}}),
            (MigProfiles{"on-both", "on-gi1"}));
  EXPECT_EQ(names({faulty_device(make_scope("GPU-1"), kLost)}), (MigProfiles{"on-both", "on-gi1", "on-gi2"}));
  EXPECT_EQ(names({faulty_device(make_scope("GPU-0"), kThermal)}), MigProfiles{});
  EvictionPolicy thermal = enabled_policy();
  thermal.class_graces[kThermal] = {Grace::Kind::kEvict, {}};
  EXPECT_TRUE(
      decide_evictions({{faulty_device(make_scope("GPU-0"), kThermal)}, 2, ""}, pods, thermal, {}, kStart)
          .empty());
}

TEST(EvictionPolicy, TheStrictestOfSeveralFaultsDecides) {
  const Scope gpu = make_scope("GPU-0");
  auto device = faulty_device(gpu, kRecoveryDrain);
  device.status.faults.push_back(faulty_device(gpu, kThermal).status.faults[0]);
  device.status.faults.push_back(faulty_device(gpu, kXidReset, kStart - minutes(2)).status.faults[0]);
  device.status.faults.push_back(faulty_device(gpu, kXidEcc).status.faults[0]);
  const auto decided = decide_one(pod_on_devices("a", {gpu}), device);
  EXPECT_EQ(decided.act, Act::kEvictAt);
  EXPECT_EQ(decided.at, kStart + minutes(3));
  // Repair proved and every check passes: it returns before any Pod could be evicted.
  for (auto& fault : device.status.faults) fault.due = kStart + seconds(30);
  const auto one = pod_on_devices("a", {gpu});
  EXPECT_TRUE(decide_evictions({{device}, 8, ""}, std::span(&one, 1), enabled_policy(), {}, kStart).empty());
}

TEST(EvictionPolicy, ExemptPodsAreOnlyNotified) {
  const Scope gpu = make_scope("GPU-0");
  const auto device = faulty_device(gpu, kLost);
  auto mirror = pod_on_devices("a", {gpu}, "Node");
  EXPECT_EQ(decide_one(mirror, device).act, Act::kNotify);
  mirror = pod_on_devices("a", {gpu});
  mirror.mirror = true;
  mirror.annotation = "evict";
  EXPECT_NE(decide_one(mirror, device).reason.find("static Pod"), std::string::npos);
  auto daemon = pod_on_devices("a", {gpu}, "DaemonSet");
  daemon.annotation = "evict";
  EXPECT_EQ(decide_one(daemon, device).act, Act::kNotify);
  auto bare = pod_on_devices("a", {gpu}, "");
  EXPECT_EQ(decide_one(bare, device).act, Act::kNotify);
  bare.namespace_annotation = "evict";
  EXPECT_EQ(decide_one(bare, device).act, Act::kNotify);
  bare.annotation = "evict";
  EXPECT_EQ(decide_one(bare, device).act, Act::kEvict);
  EvictionPolicy bare_too = enabled_policy();
  bare_too.bare_pods = true;
  EXPECT_EQ(decide_one(pod_on_devices("a", {gpu}, ""), device, bare_too).act, Act::kEvict);
}

TEST(EvictionPolicy, PodAnnotationOverridesNamespaceOverridesPolicy) {
  struct Row {
    std::optional<std::string> own, of_namespace;
    Act act;
    const char* says;
  };
  const Row rows[] = {
      {{}, {}, Act::kEvict, "the policy says evict"},
      {{}, "stay", Act::kNotify, "its namespace's annotation says stay"},
      {"evict", "stay", Act::kEvict, "its annotation says evict"},
      {"finish", "evict", Act::kFinish, "its annotation says finish"},
      {"finish=10m", {}, Act::kEvictAt, "its annotation says finish=10m"},
      {"perhaps", "evict", Act::kNotify, "its annotation gpulet.io/on-gpu-fault cannot be parsed"},
      {{}, "perhaps", Act::kNotify, "its namespace's annotation gpulet.io/on-gpu-fault cannot be parsed"},
  };
  const Scope gpu = make_scope("GPU-0");
  for (const auto& [own, of_namespace, act, says] : rows) {
    auto one = pod_on_devices("a", {gpu});
    one.annotation = own;
    one.namespace_annotation = of_namespace;
    const auto decided = decide_one(one, faulty_device(gpu, kLost));
    EXPECT_EQ(enum_name(decided.act), enum_name(act)) << says;
    EXPECT_NE(decided.reason.find(says), std::string::npos) << decided.reason;
    // Annotations apply to faults, not to an operator's cordon or an unavailable driver.
    EXPECT_EQ(decide_one(one, faulty_device(gpu, kCordoned)).act, Act::kFinish);
    EXPECT_EQ(decide_one(one, faulty_device(gpu, kDriverAway)).act, Act::kNotify);
  }
}

TEST(EvictionPolicy, ATerminatingPodIsNotEvictedAgain) {
  const Scope gpu = make_scope("GPU-0");
  const std::vector<PodOnDevice> pods = {pod_on_devices("a", {gpu}), pod_on_devices("b", {gpu})};
  const EvictionInputs node{{faulty_device(gpu, kLost)}, 8, ""};
  EvictionLog log;
  auto all = decide_evictions(node, pods, enabled_policy(), log, kStart);
  ASSERT_EQ(all.size(), 2u);
  log.record_eviction(all[0], kStart);
  all = decide_evictions(node, pods, enabled_policy(), log, kStart + hours(1));
  EXPECT_EQ(all[0].act, Act::kTerminating);
  EXPECT_EQ(all[1].act, Act::kEvict);
  log.prune(pods, enabled_policy(), kStart + hours(1));
  EXPECT_EQ(log.evictions().size(), 1u);  // it still holds it
  log.prune({}, enabled_policy(), kStart + minutes(5) - Duration(1));
  EXPECT_EQ(log.evictions().size(), 1u);  // it still counts
  log.prune({}, enabled_policy(), kStart + minutes(5));
  EXPECT_TRUE(log.evictions().empty());
  auto leaving = pods[0];
  leaving.terminating = true;
  EXPECT_EQ(decide_one(leaving, node.devices[0]).act, Act::kTerminating);
}

TEST(EvictionPolicy, AboveTheRateTheLongestDueGoFirst) {
  std::vector<PodOnDevice> pods;
  for (const char* letter : {"d", "c", "b"}) pods.push_back(pod_on_devices(letter, {make_scope("GPU-0")}));
  pods.push_back(pod_on_devices("z", {make_scope("GPU-1")}));
  EvictionPolicy policy = enabled_policy();
  policy.max_evictions = 2;
  policy.max_evictions_window = minutes(1);
  const EvictionInputs node{{faulty_device(make_scope("GPU-0"), kLost),
                             faulty_device(make_scope("GPU-1"), kLost, kStart - seconds(1))},
                            8,
                            ""};
  const auto all = decide_evictions(node, pods, policy, {}, kStart);
  ASSERT_EQ(all.size(), 4u);
  EXPECT_EQ(all[3].act, Act::kEvict);  // z
  EXPECT_EQ(all[0].act, Act::kEvict);  // b
  for (const auto i : {1u, 2u}) {
    EXPECT_EQ(all[i].act, Act::kEvictAt);
    EXPECT_EQ(all[i].at, kStart + minutes(1));
    EXPECT_NE(all[i].reason.find("at most 2 Pods may leave the node within 1m"), std::string::npos)
        << all[i].reason;
  }
  policy.max_evictions = 0;
  for (const auto& one : decide_evictions(node, pods, policy, {}, kStart)) EXPECT_EQ(one.act, Act::kBlocked);
}

TEST(EvictionPolicy, ManyUnhealthyGpusBlockEvictions) {
  struct Row {
    unsigned gpus, broken, percent;
    Act act;
  };
  const Row rows[] = {{8, 1, 50, Act::kEvict}, {8, 4, 50, Act::kEvict},  {8, 5, 50, Act::kBlocked},
                      {1, 1, 50, Act::kEvict}, {2, 1, 50, Act::kEvict},  {2, 2, 50, Act::kBlocked},
                      {8, 1, 0, Act::kEvict},  {8, 8, 100, Act::kEvict}, {8, 8, 1000, Act::kEvict}};
  for (const auto& [gpus, count, percent, act] : rows) {
    EvictionInputs node{{}, gpus, ""};
    std::vector<PodOnDevice> pods;
    for (unsigned i = 0; i < count; ++i) {
      const Scope gpu = make_scope("GPU-" + std::to_string(i));
      node.devices.push_back(faulty_device(gpu, kLost));
      pods.push_back(pod_on_devices(std::to_string(i), {gpu}));
    }
    EvictionPolicy policy = enabled_policy();
    policy.max_unhealthy_gpus_percent = percent;
    for (const auto& one : decide_evictions(node, pods, policy, {}, kStart)) EXPECT_EQ(one.act, act) << count;
    node.blocked_reason = "too many nodes of the cluster are broken";
    for (const auto& one : decide_evictions(node, pods, policy, {}, kStart)) {
      EXPECT_EQ(one.act, Act::kBlocked);
      EXPECT_NE(one.reason.find(node.blocked_reason), std::string::npos) << one.reason;
    }
  }
}

TEST(EvictionPolicy, TheLimitCountsEvictedGpusButNoCordons) {
  const Scope last = make_scope("GPU-9");
  EvictionLog log;
  EvictionPolicy policy = enabled_policy();
  policy.class_graces[kCordoned] = {Grace::Kind::kEvict, {}};
  EvictionDecision moved;
  for (int i = 0; i < 4; ++i) {
    moved.uid = "gone-" + std::to_string(i);
    moved.device = make_scope("GPU-" + std::to_string(i));
    moved.fault_class = kLost;
    log.record_eviction(moved, kStart);
  }
  const auto one = pod_on_devices("a", {last});
  const auto act = [&](FaultClass fault_class, Time now) {
    return decide_evictions({{faulty_device(last, fault_class)}, 8, ""}, std::span(&one, 1), policy, log, now)
        .at(0)
        .act;
  };
  EXPECT_EQ(act(kLost, kStart + minutes(1)), Act::kBlocked);
  EXPECT_EQ(act(kCordoned, kStart + minutes(1)), Act::kEvict);
  EXPECT_EQ(act(kLost, kStart + minutes(5)), Act::kEvict);
  EvictionLog evictions;
  moved.fault_class = kCordoned;
  for (int i = 0; i < 8; ++i) {
    moved.uid = "gone-" + std::to_string(i);
    moved.device = make_scope("GPU-" + std::to_string(i));
    evictions.record_eviction(moved, kStart);
  }
  log = evictions;
  EXPECT_EQ(act(kLost, kStart), Act::kEvict);
}

TEST(EvictionLog, ARetractedEvictionIsDecidedAgain) {
  const EvictionInputs node{{faulty_device({DeviceUuid("GPU-0")}, FaultClass::kLost)}, 8};
  const std::vector<PodOnDevice> pods{pod_on_devices("train", {{DeviceUuid("GPU-0")}})};
  EvictionLog log;
  const auto first = decide_evictions(node, pods, enabled_policy(), log, kStart);
  ASSERT_EQ(first.front().act, EvictionDecision::Act::kEvict);
  log.record_eviction(first.front(), kStart);
  EXPECT_EQ(decide_evictions(node, pods, enabled_policy(), log, kStart).front().act,
            EvictionDecision::Act::kTerminating);
  log.retract_eviction("uid-train");
  EXPECT_TRUE(log.evictions().empty());
  EXPECT_EQ(decide_evictions(node, pods, enabled_policy(), log, kStart), first);
}

// The one decision about a Pod that was cut off a minute ago.
Decided decide_cut_off(const PodOnDevice& pod, const EvictionPolicy& policy) {
  const EvictionInputs node{
      .devices = {}, .gpus = 8, .cut_off = {{pod, "container main may not open /dev/nvidia0", kStart}}};
  const auto all = decide_evictions(node, {}, policy, {}, kStart + minutes(1));
  if (all.empty()) return {Act::kNotify, {}, "none"};
  EXPECT_EQ(all[0].fault_class, std::nullopt);
  return {all[0].act, all[0].at, all[0].reason};
}

TEST(EvictionPolicy, ACutOffPodIsEvictedOnlyWhereTheSettingAsksForIt) {
  auto pod = pod_on_devices("a", {});
  auto policy = enabled_policy();
  EXPECT_EQ(decide_cut_off(pod, policy).reason, "none");
  pod.annotation = "evict";
  EXPECT_EQ(decide_cut_off(pod, policy).reason, "none");  // it speaks of faults
  pod.annotation.reset();
  policy.access_lost = {Grace::Kind::kEvict, {}};
  EXPECT_EQ(decide_cut_off(pod, policy).act, Act::kEvict);
  EXPECT_EQ(decide_cut_off(pod, policy).reason,
            "container main may not open /dev/nvidia0; the policy says evict");
  policy.access_lost = {Grace::Kind::kFinish, minutes(5)};
  EXPECT_EQ(decide_cut_off(pod, policy).act, Act::kEvictAt);
  EXPECT_EQ(decide_cut_off(pod, policy).at, kStart + minutes(5));
  pod.annotation = "stay";
  EXPECT_EQ(decide_cut_off(pod, policy).act, Act::kNotify);
  pod.annotation.reset();
  pod.namespace_annotation = "evict";
  EXPECT_EQ(decide_cut_off(pod, policy).act, Act::kEvict);
  pod.owner = "DaemonSet";
  EXPECT_EQ(decide_cut_off(pod, policy).act, Act::kNotify);
  pod.owner = "Job";
  pod.terminating = true;
  EXPECT_EQ(decide_cut_off(pod, policy).act, Act::kTerminating);
  policy.enabled = false;
  pod.terminating = false;
  EXPECT_EQ(decide_cut_off(pod, policy).act, Act::kNotify);
}

TEST(EvictionPolicy, OfAFaultAndALostAccessTheStricterDecidesAndEachPodCountsOnce) {
  const Scope gpu = make_scope("GPU-0");
  const auto pod = pod_on_devices("a", {gpu});
  auto policy = enabled_policy();
  policy.access_lost = {Grace::Kind::kFinish, minutes(1)};
  EvictionInputs node{.devices = {faulty_device(gpu, kXidReset)},
                      .gpus = 8,
                      .cut_off = {{pod, "container main may not open /dev/nvidia0", kStart}}};
  auto all = decide_evictions(node, std::span(&pod, 1), policy, {}, kStart);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].at, kStart + minutes(1));
  EXPECT_EQ(all[0].fault_class, std::nullopt);
  policy.quarantined = {Grace::Kind::kEvict, {}};
  all = decide_evictions(node, std::span(&pod, 1), policy, {}, kStart);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].act, Act::kEvict);
  EXPECT_EQ(all[0].fault_class, kXidReset);
}

TEST(EvictionPolicy, LostAccessSpeaksAgainstNoGpuButCountsForTheRate) {
  auto policy = enabled_policy();
  policy.access_lost = {Grace::Kind::kEvict, {}};
  policy.max_evictions = 3;
  EvictionInputs node{.devices = {}, .gpus = 8};
  for (const char* name : {"a", "b", "c", "d"})
    node.cut_off.push_back({pod_on_devices(name, {}), "container main may not open /dev/nvidia0", kStart});
  EvictionLog log;
  const auto all = decide_evictions(node, {}, policy, log, kStart);
  ASSERT_EQ(all.size(), 4u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all[i].act, Act::kEvict) << all[i].name;
    log.record_eviction(all[i], kStart);
    EXPECT_FALSE(log.evictions().at(all[i].uid).fault);
  }
  EXPECT_EQ(all[3].act, Act::kEvictAt);
  EXPECT_EQ(all[3].at, kStart + policy.max_evictions_window);
}

}  // namespace
}  // namespace gpulet::health
