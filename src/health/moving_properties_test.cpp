// What holds for every node, whatever breaks on it and whoever is on it.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "health/test_moving.h"

namespace gpulet::health {
namespace {

using Act = Decision::Act;

struct Node {
  MovingNode node{{}, 4, ""};
  std::vector<PodOnDevice> pods;
  MovingPolicy policy;
};

FaultClass any_class() { return static_cast<FaultClass>(*rc::gen::inRange<int>(0, int{kFaultClasses})); }

PodOnDevice any_pod(std::size_t i) {
  const std::array<const char*, 6> words = {"stay", "evict", "finish", "finish=1m", "finish=1h", "?"};
  const std::array<const char*, 5> owners = {"ReplicaSet", "Job", "DaemonSet", "Node", ""};
  auto one = pod("p" + std::to_string(i), {}, *rc::gen::elementOf(owners));
  one.mirror = *rc::gen::inRange(0, 8) == 0;
  one.leaving = *rc::gen::inRange(0, 8) == 0;
  if (*rc::gen::inRange(0, 3) == 0) one.annotation = *rc::gen::elementOf(words);
  if (*rc::gen::inRange(0, 3) == 0) one.namespace_annotation = *rc::gen::elementOf(words);
  for (int held = *rc::gen::inRange(0, 3); held > 0; --held) {
    one.devices.push_back(scope("GPU-" + std::to_string(*rc::gen::inRange(0, 4))));
  }
  return one;
}

Node any_node() {
  Node made;
  made.policy.enabled = *rc::gen::inRange(0, 8) != 0;
  made.policy.bare_pods = *rc::gen::arbitrary<bool>();
  made.policy.rate = *rc::gen::inRange(0u, 5u);
  made.policy.rate_window = minutes(*rc::gen::inRange(1, 10));
  made.policy.breaker_percent = *rc::gen::elementOf(std::array{0u, 50u, 75u, 100u});
  made.policy.breaker_window = minutes(*rc::gen::inRange(1, 10));
  for (std::size_t i = *rc::gen::inRange<std::size_t>(0, 12); i > 0; --i) made.pods.push_back(any_pod(i));
  return made;
}

// Faults come and go on the four GPUs.
void break_some(MovingNode& node, Time now) {
  node.devices.clear();
  for (int i = 0; i < 4; ++i) {
    const Scope gpu = scope("GPU-" + std::to_string(i));
    if (*rc::gen::inRange(0, 2) == 0) {
      node.devices.push_back({gpu, {}});
    } else {
      node.devices.push_back(broken(gpu, any_class(), now - seconds(*rc::gen::inRange(0, 600))));
    }
  }
}

RC_GTEST_PROP(MovingProperty, LimitsHoldOverTimeAndTheWrongOnesAreNeverMoved, ()) {
  Node made = any_node();
  MovingLog log;
  struct Moved {
    Time at;
    DeviceUuid gpu;
    bool fault;
  };
  std::vector<Moved> moved;
  std::set<std::string> uids;
  Time now = kStart;
  for (int step = 0; step < 12; ++step, now += seconds(*rc::gen::inRange(0, 200))) {
    break_some(made.node, now);
    log.tidy(made.pods, made.policy, now);
    for (const auto& one : decide_moves(made.node, made.pods, made.policy, log, now)) {
      const auto& of = *std::ranges::find(made.pods, one.uid, &PodOnDevice::uid);
      RC_ASSERT(std::ranges::find(of.devices, one.device) != of.devices.end());
      const auto device = std::ranges::find(made.node.devices, one.device, &DeviceStanding::device);
      RC_ASSERT(!offered(device->standing.state));
      RC_ASSERT(one.at.has_value() == (one.act == Act::kEvictAt));
      RC_ASSERT(one.at.value_or(Time::max()) > now);
      if (one.act != Act::kEvict) continue;
      RC_ASSERT(made.policy.enabled);
      RC_ASSERT(!of.mirror && !of.leaving && of.owner != "DaemonSet" && of.owner != "Node");
      RC_ASSERT(uids.insert(one.uid).second);  // once
      moved.push_back({now, one.device.gpu, one.fault_class != FaultClass::kCordoned});
      log.add(one, now);
    }
    std::size_t in_window = 0;
    std::set<DeviceUuid> gpus;
    for (const auto& one : moved) {
      if (now - one.at < made.policy.rate_window) ++in_window;
      if (one.fault && now - one.at < made.policy.breaker_window) gpus.insert(one.gpu);
    }
    RC_ASSERT(in_window <= made.policy.rate);
    RC_ASSERT(gpus.size() <= std::max(1u, 4 * made.policy.breaker_percent / 100));
  }
}

RC_GTEST_PROP(MovingProperty, DryRunAndTheOrderOfPodsChangeNothing, ()) {
  Node made = any_node();
  break_some(made.node, kStart);
  const auto plain = decide_moves(made.node, made.pods, made.policy, {}, kStart);
  std::ranges::reverse(made.pods);
  made.policy.dry_run = true;
  auto dry = decide_moves(made.node, made.pods, made.policy, {}, kStart);
  for (auto& one : dry) {
    RC_ASSERT(one.dry_run);
    one.dry_run = false;
  }
  RC_ASSERT(dry == plain);
}

RC_GTEST_PROP(MovingProperty, WhatIsToComeComesWhenItsTimeIsThere, ()) {
  Node made = any_node();
  made.policy.breaker_percent = 100;
  break_some(made.node, kStart);
  MovingLog log;
  Time now = kStart;
  // Asked again at each time that was named, everyone who was to leave has left in the end.
  for (int round = 0; round < 100; ++round) {
    std::optional<Time> next;
    for (const auto& one : decide_moves(made.node, made.pods, made.policy, log, now)) {
      if (one.act == Act::kEvict) log.add(one, now);
      if (one.at) next = std::min(next.value_or(*one.at), *one.at);
    }
    if (!next) break;
    now = *next;
  }
  for (const auto& one : decide_moves(made.node, made.pods, made.policy, log, now)) {
    RC_ASSERT(one.act != Act::kEvict && one.act != Act::kEvictAt);
    RC_ASSERT(one.act != Act::kHold || made.policy.rate == 0);
  }
}

}  // namespace
}  // namespace gpulet::health
