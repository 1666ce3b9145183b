#include "agent/remediation/pod_evictor.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/remediation/test_faults.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::FaultClass;
using k8s::EvictionUpdate;

class PodEvictorTest : public testing::Test {
 protected:
  PodEvictorTest() { policy_.node.enabled = true; }

  HeldPod held_pod(const std::string& name, unsigned on, const std::string& owner = "ReplicaSet") {
    HeldPod held;
    held.pod = health::pod_on_devices(name, {gpu_scope(on)}, owner);
    held.is_current = true;
    return held;
  }
  void update_evictor() {
    moving_.update_evictions(std::make_shared<const health::HealthView>(view_with(8, broken_, opened_)),
                             pods_, policy_);
    loop_.run_ready();
  }
  std::string pending_pods() const {
    std::string out;
    for (const auto& pod : evictions_.pods()) out += (out.empty() ? "" : " ") + pod;
    return out;
  }
  // The reasons reported about a Pod, in order.
  std::vector<std::string> notified_reasons(const std::string& pod) const {
    std::vector<std::string> reasons;
    for (const auto& event : events_) {
      if (event.pod.name == pod) reasons.push_back(event.reason);
    }
    return reasons;
  }

  ManualLoop loop_;
  std::map<unsigned, FaultClass> broken_;
  Time opened_{};
  std::vector<HeldPod> pods_;
  PodEvictorPolicy policy_;
  FakeEvictions evictions_;
  int started_ = 0, shares_asked_ = 0;
  Result<ClusterShare> share_ = ClusterShare{100, 1};
  std::vector<EvictionEvent> events_;
  PodEvictor moving_{{.loop = loop_,
                      .evict = [this](const PodRef& pod, auto on_update) -> std::unique_ptr<k8s::Eviction> {
                        EXPECT_EQ(pod.uid, "uid-" + pod.name);
                        ++started_;
                        return evictions_.start_eviction(pod.name, std::move(on_update));
                      },
                      .share =
                          [this](auto done) {
                            ++shares_asked_;
                            loop_.post([this, done = std::move(done)] { done(share_); });
                          },
                      .notify = [this](const EvictionEvent& event) { events_.push_back(event); }}};
};

TEST_F(PodEvictorTest, OffByDefault) {
  policy_ = {};
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(started_, 0);
  EXPECT_TRUE(events_.empty());
}

TEST_F(PodEvictorTest, EvictsOnlyHoldersOfTheFaultyDevice) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("infer", 4), held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(pending_pods(), "train");
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].reason, "GpuFaultEviction");
  EXPECT_EQ(events_[0].pod.uid, "uid-train");
  update_evictor();
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(events_.size(), 1u);
  evictions_.answer("train", EvictionUpdate::Kind::kTerminating);
  EXPECT_EQ(moving_.evicted(), 1u);
  update_evictor();
  EXPECT_EQ(started_, 1);
}

TEST_F(PodEvictorTest, AnExemptPodIsNotifiedOnce) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("daemon", 3, "DaemonSet"), held_pod("static", 3)};
  pods_[1].pod.mirror = true;
  for (int i = 0; i < 3; ++i) update_evictor();
  EXPECT_EQ(started_, 0);
  EXPECT_EQ(notified_reasons("daemon"), (std::vector<std::string>{"GpuFaultStays"}));
  EXPECT_EQ(notified_reasons("static"), (std::vector<std::string>{"GpuFaultStays"}));
}

TEST_F(PodEvictorTest, ADisruptionBudgetIsReportedOnceAndRetried) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  for (int i = 0; i < 3; ++i) {
    evictions_.answer("train", EvictionUpdate::Kind::kWaiting, "the budget needs 1 Pod");
    update_evictor();
  }
  EXPECT_EQ(pending_pods(), "train");
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(notified_reasons("train"),
            (std::vector<std::string>{"GpuFaultEviction", "GpuFaultEvictionWaits"}));
  evictions_.answer("train", EvictionUpdate::Kind::kTerminating);
  EXPECT_EQ(moving_.evicted(), 1u);
}

TEST_F(PodEvictorTest, ARecoveryCancelsPendingEvictions) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  evictions_.answer("train", EvictionUpdate::Kind::kWaiting, "the budget needs 1 Pod");
  broken_.clear();
  update_evictor();
  EXPECT_EQ(pending_pods(), "");
  // It was not evicted: when its device fails again, it is requested again.
  broken_ = {{3, FaultClass::kLost}};
  update_evictor();
  EXPECT_EQ(pending_pods(), "train");
  EXPECT_EQ(started_, 2);
  EXPECT_EQ(notified_reasons("train").back(), "GpuFaultEviction");
}

TEST_F(PodEvictorTest, AnAnnotationCancelsAPendingEviction) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  pods_[0].pod.annotation = "stay";
  update_evictor();
  EXPECT_EQ(pending_pods(), "");
  EXPECT_EQ(notified_reasons("train").back(), "GpuFaultStays");
}

TEST_F(PodEvictorTest, APodWithMissingDataIsNotEvicted) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  pods_[0].is_current = false;
  update_evictor();
  EXPECT_EQ(started_, 0);
}

TEST_F(PodEvictorTest, EvictsWhenTheGraceEnds) {
  broken_ = {{3, FaultClass::kXidReset}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(notified_reasons("train"), (std::vector<std::string>{"GpuFaultEvictionPlanned"}));
  loop_.advance(5min - 1s);
  EXPECT_EQ(started_, 0);
  loop_.advance(1s);
  EXPECT_EQ(pending_pods(), "train");
}

TEST_F(PodEvictorTest, TheRateLimitsAndOthersFollow) {
  policy_.node.max_evictions = 2;
  policy_.node.max_evictions_window = 1min;
  broken_ = {{3, FaultClass::kLost}};
  for (const auto* name : {"a", "b", "c"}) pods_.push_back(held_pod(name, 3));
  update_evictor();
  EXPECT_EQ(pending_pods(), "a b");
  for (const auto* name : {"a", "b"}) evictions_.answer(name, EvictionUpdate::Kind::kTerminating);
  EXPECT_EQ(notified_reasons("c"), (std::vector<std::string>{"GpuFaultEvictionPlanned"}));
  loop_.advance(1min);
  EXPECT_TRUE(evictions_.is_pending("c"));
}

TEST_F(PodEvictorTest, TooManyUnhealthyGpusBlockEvictions) {
  pods_ = {held_pod("train", 0)};
  for (unsigned i = 0; i < 4; ++i) broken_[i] = FaultClass::kLost;
  update_evictor();
  EXPECT_EQ(pending_pods(), "train");
  broken_[4] = FaultClass::kLost;  // before the API server has taken it
  update_evictor();
  EXPECT_EQ(pending_pods(), "");
  EXPECT_EQ(notified_reasons("train").back(), "GpuFaultEvictionHeld");
  broken_.erase(4);
  loop_.advance(kBlockedRetryInterval);  // still held: its data is outdated
  EXPECT_EQ(pending_pods(), "");
  update_evictor();
  EXPECT_EQ(pending_pods(), "train");
}

TEST_F(PodEvictorTest, ADryRunOnlyReports) {
  policy_.node.dry_run = true;
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  for (int i = 0; i < 3; ++i) update_evictor();
  EXPECT_EQ(started_, 0);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].reason, "GpuFaultEviction");
  EXPECT_NE(events_[0].message.find("(dry run)"), std::string::npos);
  policy_.node.dry_run = false;
  update_evictor();
  EXPECT_EQ(pending_pods(), "train");
}

TEST_F(PodEvictorTest, ChecksTheClusterFirst) {
  policy_.max_unhealthy_nodes_percent = 5;
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(shares_asked_, 1);
  EXPECT_EQ(pending_pods(), "train");
  update_evictor();
  EXPECT_EQ(shares_asked_, 1);
}

TEST_F(PodEvictorTest, TooManyUnhealthyNodesBlockAndAreRechecked) {
  policy_.max_unhealthy_nodes_percent = 5;
  share_ = ClusterShare{100, 6};
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(started_, 0);
  ASSERT_EQ(notified_reasons("train"), (std::vector<std::string>{"GpuFaultEvictionHeld"}));
  EXPECT_NE(events_[0].message.find("6 of 100 nodes have unhealthy GPUs, more than 5"), std::string::npos);
  share_ = ClusterShare{100, 5};
  loop_.advance(kBlockedRetryInterval);
  EXPECT_EQ(pending_pods(), "train");
}

TEST_F(PodEvictorTest, AnUnknownShareBlocks) {
  policy_.max_unhealthy_nodes_percent = 5;
  share_ = fail(Code::kUnavailable, "the API server is away");
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(started_, 0);
  EXPECT_EQ(notified_reasons("train"), (std::vector<std::string>{"GpuFaultEvictionHeld"}));
}

TEST_F(PodEvictorTest, OneNodeIsAlwaysAllowed) {
  policy_.max_unhealthy_nodes_percent = 5;
  share_ = ClusterShare{2, 1};
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(pending_pods(), "train");
}

TEST_F(PodEvictorTest, ARefusalIsReportedAndNotRetried) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  evictions_.answer("train", EvictionUpdate::Kind::kRefused, "no such subresource");
  update_evictor();
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(notified_reasons("train").back(), "GpuFaultEvictionRefused");
  EXPECT_EQ(moving_.evicted(), 0u);
}

TEST_F(PodEvictorTest, ADegradedDeviceEvictsNothing) {
  broken_ = {{3, FaultClass::kRowRemapPending}};
  pods_ = {held_pod("train", 3)};
  update_evictor();
  EXPECT_EQ(started_, 0);
  EXPECT_TRUE(events_.empty());
}

TEST_F(PodEvictorTest, ACutOffPodLeavesAsTheSettingSaysUntilItHasItsDevicesAgain) {
  const std::vector<health::CutOffPod> cut_off = {
      {health::pod_on_devices("train", {}), "container main may not open /dev/nvidia0", loop_.now()}};
  update_evictor();
  moving_.update_cut_off_pods(cut_off);
  EXPECT_EQ(started_, 0);
  EXPECT_TRUE(events_.empty());
  policy_.node.access_lost = {health::Grace::Kind::kEvict, {}};
  update_evictor();
  EXPECT_EQ(pending_pods(), "train");
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].reason, "GpuFaultEviction");
  EXPECT_EQ(events_[0].message,
            "eviction requested: container main may not open /dev/nvidia0; the policy says evict");
  EXPECT_TRUE(moving_.is_evicting());
  evictions_.answer("train", EvictionUpdate::Kind::kWaiting, "a budget");
  EXPECT_EQ(notified_reasons("train").back(), "GpuFaultEvictionWaits");
  moving_.update_cut_off_pods({});
  EXPECT_EQ(pending_pods(), "");
  EXPECT_FALSE(moving_.is_evicting());
  moving_.update_cut_off_pods(cut_off);
  EXPECT_EQ(pending_pods(), "train");
  evictions_.answer("train", EvictionUpdate::Kind::kTerminating);
  moving_.update_cut_off_pods(cut_off);
  EXPECT_EQ(started_, 2);
  EXPECT_EQ(moving_.evicted(), 1u);
}

}  // namespace
}  // namespace gpulet::agent
