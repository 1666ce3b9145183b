// Properties of eviction decisions for random nodes, faults and Pods.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "health/policy/test_eviction.h"

namespace gpulet::health {
namespace {

using Act = EvictionDecision::Act;

struct Node {
  EvictionInputs node{{}, 4, ""};
  std::vector<PodOnDevice> pods;
  EvictionPolicy policy;
};

FaultClass any_class() { return static_cast<FaultClass>(*rc::gen::inRange<int>(0, int{kFaultClassCount})); }

PodOnDevice any_pod(std::size_t i) {
  const std::array<const char*, 6> words = {"stay", "evict", "finish", "finish=1m", "finish=1h", "?"};
  const std::array<const char*, 5> owners = {"ReplicaSet", "Job", "DaemonSet", "Node", ""};
  auto one = pod_on_devices("p" + std::to_string(i), {}, *rc::gen::elementOf(owners));
  one.mirror = *rc::gen::inRange(0, 8) == 0;
  one.terminating = *rc::gen::inRange(0, 8) == 0;
  if (*rc::gen::inRange(0, 3) == 0) one.annotation = *rc::gen::elementOf(words);
  if (*rc::gen::inRange(0, 3) == 0) one.namespace_annotation = *rc::gen::elementOf(words);
  for (int held = *rc::gen::inRange(0, 3); held > 0; --held) {
    one.devices.push_back(make_scope("GPU-" + std::to_string(*rc::gen::inRange(0, 4))));
  }
  return one;
}

Node any_faulty_node() {
  Node made;
  made.policy.enabled = *rc::gen::inRange(0, 8) != 0;
  made.policy.bare_pods = *rc::gen::arbitrary<bool>();
  made.policy.max_evictions = *rc::gen::inRange(0u, 5u);
  made.policy.max_evictions_window = minutes(*rc::gen::inRange(1, 10));
  made.policy.max_unhealthy_gpus_percent = *rc::gen::elementOf(std::array{0u, 50u, 75u, 100u});
  made.policy.unhealthy_gpus_window = minutes(*rc::gen::inRange(1, 10));
  for (std::size_t i = *rc::gen::inRange<std::size_t>(0, 12); i > 0; --i) made.pods.push_back(any_pod(i));
  return made;
}

// Faults open and end on the four GPUs.
void break_some(EvictionInputs& node, Time now) {
  node.devices.clear();
  for (int i = 0; i < 4; ++i) {
    const Scope gpu = make_scope("GPU-" + std::to_string(i));
    if (*rc::gen::inRange(0, 2) == 0) {
      node.devices.push_back({gpu, {}});
    } else {
      node.devices.push_back(faulty_device(gpu, any_class(), now - seconds(*rc::gen::inRange(0, 600))));
    }
  }
}

RC_GTEST_PROP(EvictionProperty, LimitsHoldOverTimeAndExemptPodsAreNeverEvicted, ()) {
  Node made = any_faulty_node();
  EvictionLog log;
  struct Evicted {
    Time at;
    DeviceUuid gpu;
    bool fault;
  };
  std::vector<Evicted> evicted;
  std::set<std::string> uids;
  Time now = kStart;
  for (int step = 0; step < 12; ++step, now += seconds(*rc::gen::inRange(0, 200))) {
    break_some(made.node, now);
    log.prune(made.pods, made.policy, now);
    for (const auto& one : decide_evictions(made.node, made.pods, made.policy, log, now)) {
      const auto& of = *std::ranges::find(made.pods, one.uid, &PodOnDevice::uid);
      RC_ASSERT(std::ranges::find(of.devices, one.device) != of.devices.end());
      const auto device = std::ranges::find(made.node.devices, one.device, &FaultyDevice::device);
      RC_ASSERT(!is_allocatable(device->status.state));
      RC_ASSERT(one.at.has_value() == (one.act == Act::kEvictAt));
      RC_ASSERT(one.at.value_or(Time::max()) > now);
      if (one.act != Act::kEvict) continue;
      RC_ASSERT(made.policy.enabled);
      RC_ASSERT(!of.mirror && !of.terminating && of.owner != "DaemonSet" && of.owner != "Node");
      RC_ASSERT(uids.insert(one.uid).second);  // once per Pod
      evicted.push_back({now, one.device.gpu, one.fault_class != FaultClass::kCordoned});
      log.record_eviction(one, now);
    }
    std::size_t in_window = 0;
    std::set<DeviceUuid> gpus;
    for (const auto& one : evicted) {
      if (now - one.at < made.policy.max_evictions_window) ++in_window;
      if (one.fault && now - one.at < made.policy.unhealthy_gpus_window) gpus.insert(one.gpu);
    }
    RC_ASSERT(in_window <= made.policy.max_evictions);
    RC_ASSERT(gpus.size() <= std::max(1u, 4 * made.policy.max_unhealthy_gpus_percent / 100));
  }
}

RC_GTEST_PROP(EvictionProperty, DryRunAndPodOrderChangeNothing, ()) {
  Node made = any_faulty_node();
  break_some(made.node, kStart);
  const auto plain = decide_evictions(made.node, made.pods, made.policy, {}, kStart);
  std::ranges::reverse(made.pods);
  made.policy.dry_run = true;
  auto dry = decide_evictions(made.node, made.pods, made.policy, {}, kStart);
  for (auto& one : dry) {
    RC_ASSERT(one.dry_run);
    one.dry_run = false;
  }
  RC_ASSERT(dry == plain);
}

RC_GTEST_PROP(EvictionProperty, PlannedEvictionsHappenAtTheirTime, ()) {
  Node made = any_faulty_node();
  made.policy.max_unhealthy_gpus_percent = 100;
  break_some(made.node, kStart);
  EvictionLog log;
  Time now = kStart;
  // Decided again at each named time, every due Pod is evicted in the end.
  for (int round = 0; round < 100; ++round) {
    std::optional<Time> next;
    for (const auto& one : decide_evictions(made.node, made.pods, made.policy, log, now)) {
      if (one.act == Act::kEvict) log.record_eviction(one, now);
      if (one.at) next = std::min(next.value_or(*one.at), *one.at);
    }
    if (!next) break;
    now = *next;
  }
  for (const auto& one : decide_evictions(made.node, made.pods, made.policy, log, now)) {
    RC_ASSERT(one.act != Act::kEvict && one.act != Act::kEvictAt);
    RC_ASSERT(one.act != Act::kBlocked || made.policy.max_evictions == 0);
  }
}

}  // namespace
}  // namespace gpulet::health
