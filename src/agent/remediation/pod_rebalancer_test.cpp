#include "agent/remediation/pod_rebalancer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/remediation/test_faults.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using k8s::EvictionUpdate;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kShared = "nvidia.com/gpu.shared";

// Two GPUs of four shares each: "GPU-0" is hot with two Pods, "GPU-1" is idle.
class PodRebalancerTest : public testing::Test {
 protected:
  PodRebalancerTest() {
    policy_.enabled = true;
    rebalancer_.apply_policy(policy_);
    node_.models.resize(1);
    node_.gpus.resize(2);
    node_.gpus[0].uuid = "GPU-0";
    node_.gpus[1].uuid = "GPU-1";
    node_.pairs.resize(4);
    scheduler::ResourceUnit unit;
    unit.shares = 4;
    auto other = unit;
    other.gpu = 1;
    node_.resources = {{.name = ResourceName(kShared),
                         .sharing = scheduler::Sharing::kTimeSlicing,
                         .units = {unit, other}}};
    run_pod("high", 60, 100);
    run_pod("low", 40, 0);
    uses_[DeviceUuid("GPU-0")].busy = 100;
    uses_[DeviceUuid("GPU-1")].busy = 0;
    evictor_.update_evictions(std::make_shared<const health::HealthView>(view_with(2, {})), {}, limits_);
  }

  void run_pod(const std::string& name, double busy, std::int64_t priority) {
    reader_.add_pod(name);
    reader_.pods["default/" + name].priority = priority;
    node_.allocations.push_back({"default/" + name, {{0, 0, 1}}});
    uses_[DeviceUuid("GPU-0")].pods[{"default", name}] = {
        busy, scheduler::flat_curve(static_cast<unsigned>(busy), 0)};
  }
  void end_pod(const std::string& name) {
    reader_.pods.erase("default/" + name);
    std::erase_if(node_.allocations, [&](const auto& held) { return held.pod == "default/" + name; });
    uses_[DeviceUuid("GPU-0")].pods.erase({"default", name});
  }
  void sample_for(Duration time) {
    for (Duration passed{}; passed < time; passed += 15s) {
      loop_.advance(15s);
      rebalancer_.on_sampled(uses_);
      loop_.run_ready();
    }
  }
  std::vector<std::string> reasons() const {
    std::vector<std::string> all;
    for (const auto& event : events_) all.push_back(event.pod.name + " " + event.reason);
    return all;
  }

  ManualLoop loop_;
  scheduler::RebalancePolicy policy_;
  scheduler::GpuNode node_;
  std::map<DeviceUuid, GpuLoadForecaster::GpuUse> uses_;
  FakeReader reader_{loop_};
  PodEvictorPolicy limits_;
  FakeEvictions evictions_;
  std::vector<EvictionEvent> events_;
  std::optional<Error> kubelet_error_;
  PodEvictor evictor_{{.loop = loop_, .evict = nullptr, .share = nullptr, .notify = [](const auto&) {}}};
  PodRebalancer rebalancer_{
      {.loop = loop_,
       .reader = reader_,
       .evictor = evictor_,
       .gpus =
           [this](auto done) {
             loop_.post([this, done = std::move(done)] {
               if (kubelet_error_) return done(fail(*kubelet_error_));
               done(build_rebalance_gpus(node_, uses_));
             });
           },
       .evict = [this](const PodRef& pod, auto on_update) -> std::unique_ptr<k8s::Eviction> {
         EXPECT_EQ(pod.uid, "uid-" + pod.name);
         return evictions_.start_eviction(pod.name, std::move(on_update));
       },
       .notify = [this](const EvictionEvent& event) { events_.push_back(event); }}};
};

TEST_F(PodRebalancerTest, EvictsThePodOfTheLowestPriority) {
  sample_for(10min);
  EXPECT_THAT(evictions_.pods(), IsEmpty()) << "the first sample was not ten minutes ago";
  EXPECT_THAT(reader_.asked, IsEmpty()) << "Pods are read only when a GPU is hot for long";
  sample_for(15s);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low"));
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].reason, "GpuRebalanceEviction");
  EXPECT_EQ(events_[0].message,
            "eviction requested: GPU-0 has been above 95 % for 10m; GPU-1 has room for its 40 %");
}

TEST_F(PodRebalancerTest, IsOffByDefault) {
  rebalancer_.apply_policy({});
  sample_for(1h);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(PodRebalancerTest, ADryRunOnlyReportsOnceForEachChange) {
  policy_.dry_run = true;
  rebalancer_.apply_policy(policy_);
  sample_for(35min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].message,
            "would be evicted (dry run): GPU-0 has been above 95 % for 10m; GPU-1 has "
            "room for its 40 %");
  EXPECT_EQ(rebalancer_.counts(), (metrics::RebalanceCounts{.evicted = 0, .refused = 0, .dry_run = 3}));
  EXPECT_TRUE(evictor_.reserve_eviction({"default", "x", "x"}, DeviceUuid("GPU-0"))) << "nothing was counted";
}

TEST_F(PodRebalancerTest, OneAtATimeUntilThePodHasGoneAndItIsMeasuredAgain) {
  run_pod("third", 10, 50);
  sample_for(11min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low"));
  evictions_.answer("low", EvictionUpdate::Kind::kTerminating);
  EXPECT_EQ(rebalancer_.counts().evicted, 1u);
  sample_for(30min);
  EXPECT_THAT(evictions_.pods(), IsEmpty()) << "its grace period runs";
  end_pod("low");
  sample_for(10min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  sample_for(30s);
  EXPECT_THAT(evictions_.pods(), ElementsAre("third"));
}

// StatefulSets give a name again.
TEST_F(PodRebalancerTest, APodOfTheSameNameIsAnother) {
  sample_for(11min);
  evictions_.answer("low", EvictionUpdate::Kind::kTerminating);
  reader_.add_pod("low", {}, "uid-of-the-next");
  sample_for(10min);
  reader_.add_pod("low");
  sample_for(45s);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low"));
}

TEST_F(PodRebalancerTest, ARefusalIsRetriedWhileTheGpuIsHot) {
  sample_for(11min);
  evictions_.answer("low", EvictionUpdate::Kind::kWaiting, "the disruption budget low needs 1 healthy pods");
  sample_for(20min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low"));
  uses_[DeviceUuid("GPU-0")].busy = 80;
  sample_for(15s);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  EXPECT_THAT(reasons(), ElementsAre("low GpuRebalanceEviction", "low GpuRebalanceEvictionWaits",
                                     "low GpuRebalanceEvictionAbandoned"));
  EXPECT_THAT(events_[1].message, HasSubstr("the disruption budget low needs 1 healthy pods"));
}

TEST_F(PodRebalancerTest, AFinalRefusalEndsTheMove) {
  sample_for(11min);
  evictions_.answer("low", EvictionUpdate::Kind::kRefused, "it is a static Pod");
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  EXPECT_EQ(rebalancer_.counts().refused, 1u);
  EXPECT_EQ(events_.back().reason, "GpuRebalanceEvictionRefused");
}

TEST_F(PodRebalancerTest, EndsWithTheSetting) {
  sample_for(11min);
  policy_.dry_run = true;
  rebalancer_.apply_policy(policy_);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  EXPECT_EQ(events_.back().reason, "GpuRebalanceEvictionAbandoned");
}

TEST_F(PodRebalancerTest, LeavesPodsThatWouldNotComeBack) {
  for (const auto& [owner, mirror] : {std::pair{"DaemonSet", false}, {"", false}, {"Node", true}}) {
    reader_.pods["default/low"].owner = reader_.pods["default/high"].owner = owner;
    reader_.pods["default/low"].mirror = reader_.pods["default/high"].mirror = mirror;
    sample_for(11min);
    EXPECT_THAT(evictions_.pods(), IsEmpty()) << owner;
  }
  reader_.pods["default/high"] = reader_.pods["default/low"];
  reader_.add_pod("high");
  sample_for(11min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("high")) << "the only one that may be asked";
}

TEST_F(PodRebalancerTest, AnnotationsDecideForAPodAndItsNamespace) {
  reader_.pods["default/low"].annotations[kRebalanceAnnotation] = "never";
  sample_for(11min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("high"));
  evictions_.answer("high", EvictionUpdate::Kind::kGone);
  reader_.pods["default/low"].annotations.clear();
  reader_.namespaces["default"][kRebalanceAnnotation] = "nevr";
  sample_for(11min);
  EXPECT_THAT(evictions_.pods(), IsEmpty()) << "what cannot be parsed was meant to differ";
  reader_.pods["default/low"].annotations[kRebalanceAnnotation] = "allow";
  sample_for(11min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low")) << "the Pod's own wins";
}

TEST_F(PodRebalancerTest, MissingDataAsksNobody) {
  reader_.error = Error(Code::kUnavailable, "no API server");
  sample_for(20min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  reader_.error.reset();
  reader_.namespace_error = Error(Code::kPermissionDenied, "get on namespaces");
  sample_for(5min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  reader_.namespace_error.reset();
  kubelet_error_ = Error(Code::kUnavailable, "no kubelet");
  sample_for(5min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  kubelet_error_.reset();
  sample_for(1min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low"));
}

TEST_F(PodRebalancerTest, WaitsForAPodThatIsTerminating) {
  reader_.pods["default/high"].terminating = true;
  sample_for(20min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
}

TEST_F(PodRebalancerTest, SharesTheLimitOfFaultEvictions) {
  limits_.node.max_evictions = 1;
  limits_.node.max_evictions_window = 1h;
  evictor_.update_evictions(std::make_shared<const health::HealthView>(view_with(2, {})), {}, limits_);
  ASSERT_TRUE(evictor_.reserve_eviction({"default", "other", "uid-other"}, DeviceUuid("GPU-1")));
  sample_for(20min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  ASSERT_THAT(reasons(), ElementsAre("low GpuRebalanceEvictionHeld"));
  EXPECT_THAT(events_[0].message, HasSubstr("at most 1 Pods may leave the node"));
  sample_for(45min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low"));
  EXPECT_FALSE(evictor_.reserve_eviction({"default", "next", "uid-next"}, DeviceUuid("GPU-1")));
}

TEST_F(PodRebalancerTest, WaitsWhileAFaultEvictsPods) {
  sample_for(11min);
  HeldPod held;
  held.pod = health::pod_on_devices("victim", {gpu_scope(1)}, "ReplicaSet");
  held.pod.terminating = true;
  held.is_current = true;
  limits_.node.enabled = true;
  evictor_.update_evictions(
      std::make_shared<const health::HealthView>(view_with(2, {{1, health::FaultClass::kLost}}, loop_.now())),
      {held}, limits_);
  sample_for(15s);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  EXPECT_EQ(events_.back().reason, "GpuRebalanceEvictionAbandoned");
  sample_for(30min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  evictor_.update_evictions(std::make_shared<const health::HealthView>(view_with(2, {})), {}, limits_);
  sample_for(1min);
  EXPECT_THAT(evictions_.pods(), ElementsAre("low"));
}

// As the kubelet will ask for it once the Pod has left.
TEST_F(PodRebalancerTest, TheNodesPlacementChoosesTheGpuOfTheSuccessor) {
  const auto successor = [&] { return build_rebalance_gpus(node_, uses_)[0].pods[1].successor; };
  EXPECT_EQ(successor(), 1u) << "where fewer shares are in use";
  node_.allocations.push_back({"default/cool", {{0, 1, 1}}});
  EXPECT_EQ(successor(), 1u) << "as many shares are in use, and it is less busy";
  node_.allocations.push_back({"default/idle", {{0, 1, 1}}});
  EXPECT_EQ(successor(), 0u) << "more are in use: it would come back to the hot GPU";
  sample_for(20min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
  node_.allocations.resize(2);
  node_.rules.shared = placement::SharedPolicy::kPacked;
  EXPECT_EQ(successor(), 0u) << "where more are in use";
}

TEST_F(PodRebalancerTest, BuildsTheGpusOfTheRule) {
  node_.allocations.push_back({"default/two", {{0, 0, 1}, {0, 1, 1}}});
  node_.resources[0].units[1].unavailable = 1;
  auto gpus = build_rebalance_gpus(node_, uses_);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_TRUE(gpus[0].is_usable);
  EXPECT_EQ(gpus[0].free.at(kShared), 1u);
  EXPECT_EQ(gpus[1].free.at(kShared), 2u);
  ASSERT_EQ(gpus[0].pods.size(), 3u);
  EXPECT_EQ(gpus[0].pods[1].pod, "default/low");
  EXPECT_EQ(gpus[0].pods[1].busy, 40);
  EXPECT_THAT(gpus[0].pods[2].stays, StartsWith("a Pod with devices of several GPUs"));
  EXPECT_EQ(gpus[0].busy, std::nullopt) << "a Pod that no sample knows yet";
  EXPECT_EQ(gpus[0].day.peak(), 100);

  node_.resources[0].units[0].shares = 1;
  node_.resources[0].units[1].profile = "1g.10gb";
  gpus = build_rebalance_gpus(node_, uses_);
  EXPECT_FALSE(gpus[0].is_usable) << "a whole GPU";
  EXPECT_FALSE(gpus[1].is_usable) << "MIG devices";
  node_.resources[0].units[0].shares = 4;
  node_.gpus[0].state = health::DeviceState::kQuarantined;
  EXPECT_FALSE(build_rebalance_gpus(node_, uses_)[0].is_usable);
  EXPECT_EQ(build_rebalance_gpus(node_, {})[1].busy, std::nullopt);
}

TEST_F(PodRebalancerTest, ClaimsStay) {
  node_ = scheduler::test_claim_node(2, 2);
  for (const auto* const pod : {"default/high", "default/low"}) scheduler::hold_units(node_, pod, {0});
  const auto gpus = build_rebalance_gpus(node_, uses_);
  EXPECT_EQ(gpus[0].pods.size(), 2u);
  EXPECT_FALSE(gpus[0].is_usable || gpus[1].is_usable) << "a claim names its device";
  sample_for(20min);
  EXPECT_THAT(evictions_.pods(), IsEmpty());
}

}  // namespace
}  // namespace gpulet::agent
