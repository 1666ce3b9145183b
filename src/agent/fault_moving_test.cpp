#include "agent/fault_moving.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/test_faults.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using cluster::EvictionNews;
using health::FaultClass;

class FaultMovingTest : public testing::Test {
 protected:
  // One that a test answers for; it is away from `asking_` once it is destroyed.
  class Asking final : public cluster::Eviction {
   public:
    Asking(std::map<std::string, cluster::Eviction::News>& all, std::string pod, cluster::Eviction::News news)
        : all_(all), pod_(std::move(pod)) {
      all_[pod_] = std::move(news);
    }
    ~Asking() override { all_.erase(pod_); }

   private:
    std::map<std::string, cluster::Eviction::News>& all_;
    std::string pod_;
  };

  FaultMovingTest() { policy_.node.enabled = true; }

  HeldPod held(const std::string& name, unsigned on, const std::string& owner = "ReplicaSet") {
    HeldPod held;
    held.pod = health::pod(name, {gpu(on)}, owner);
    held.sure = true;
    return held;
  }
  void update() {
    moving_.update(std::make_shared<const health::View>(view_with(8, broken_, opened_)), pods_, policy_);
    loop_.run_ready();
  }
  void answer(const std::string& pod, EvictionNews::Kind kind, const std::string& why = "") {
    ASSERT_TRUE(asking_.contains(pod));
    const auto news = asking_.at(pod);
    news({"default/" + pod, kind, why});
  }
  std::string asking() const {
    std::string out;
    for (const auto& [pod, news] : asking_) out += (out.empty() ? "" : " ") + pod;
    return out;
  }
  // The reasons told of a Pod, in order.
  std::vector<std::string> told(const std::string& pod) const {
    std::vector<std::string> reasons;
    for (const auto& news : news_) {
      if (news.pod.name == pod) reasons.push_back(news.reason);
    }
    return reasons;
  }

  ManualLoop loop_;
  std::map<unsigned, FaultClass> broken_;
  Time opened_{};
  std::vector<HeldPod> pods_;
  FaultMovingPolicy policy_;
  std::map<std::string, cluster::Eviction::News> asking_;
  int started_ = 0, shares_asked_ = 0;
  Result<ClusterShare> share_ = ClusterShare{100, 1};
  std::vector<MovingNews> news_;
  FaultMoving moving_{
      {.loop = loop_,
       .evict = [this](const cluster::PodRef& pod, auto news) -> std::unique_ptr<cluster::Eviction> {
         EXPECT_EQ(pod.uid, "uid-" + pod.name);
         ++started_;
         return std::make_unique<Asking>(asking_, pod.name, std::move(news));
       },
       .share =
           [this](auto done) {
             ++shares_asked_;
             loop_.post([this, done = std::move(done)] { done(share_); });
           },
       .tell = [this](const MovingNews& news) { news_.push_back(news); }}};
};

TEST_F(FaultMovingTest, OffByDefaultNobodyIsAskedOrTold) {
  policy_ = {};
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  EXPECT_EQ(started_, 0);
  EXPECT_TRUE(news_.empty());
}

TEST_F(FaultMovingTest, OnlyWhoHoldsTheBrokenDeviceIsAsked) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("infer", 4), held("train", 3)};
  update();
  EXPECT_EQ(asking(), "train");
  ASSERT_EQ(news_.size(), 1u);
  EXPECT_EQ(news_[0].reason, "GpuFaultEviction");
  EXPECT_EQ(news_[0].pod.uid, "uid-train");
  update();
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(news_.size(), 1u);
  answer("train", EvictionNews::Kind::kLeaving);
  EXPECT_EQ(moving_.moved(), 1u);
  update();
  EXPECT_EQ(started_, 1);
}

TEST_F(FaultMovingTest, WhoCannotBeMovedIsToldOnce) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("daemon", 3, "DaemonSet"), held("static", 3)};
  pods_[1].pod.mirror = true;
  for (int i = 0; i < 3; ++i) update();
  EXPECT_EQ(started_, 0);
  EXPECT_EQ(told("daemon"), (std::vector<std::string>{"GpuFaultStays"}));
  EXPECT_EQ(told("static"), (std::vector<std::string>{"GpuFaultStays"}));
}

TEST_F(FaultMovingTest, ABudgetThatForbidsIsSaidOnceAndAskedOn) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  for (int i = 0; i < 3; ++i) {
    answer("train", EvictionNews::Kind::kWaiting, "the budget needs 1 Pod");
    update();
  }
  EXPECT_EQ(asking(), "train");
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(told("train"), (std::vector<std::string>{"GpuFaultEviction", "GpuFaultEvictionWaits"}));
  answer("train", EvictionNews::Kind::kLeaving);
  EXPECT_EQ(moving_.moved(), 1u);
}

TEST_F(FaultMovingTest, WhatHealsMeanwhileIsNotAskedOn) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  answer("train", EvictionNews::Kind::kWaiting, "the budget needs 1 Pod");
  broken_.clear();
  update();
  EXPECT_EQ(asking(), "");
  // It was not moved: when its device breaks again it is asked again.
  broken_ = {{3, FaultClass::kLost}};
  update();
  EXPECT_EQ(asking(), "train");
  EXPECT_EQ(started_, 2);
  EXPECT_EQ(told("train").back(), "GpuFaultEviction");
}

TEST_F(FaultMovingTest, AnAnnotationEndsTheAsking) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  pods_[0].pod.annotation = "stay";
  update();
  EXPECT_EQ(asking(), "");
  EXPECT_EQ(told("train").back(), "GpuFaultStays");
}

TEST_F(FaultMovingTest, OneWhoseWishIsNotKnownIsLeftAlone) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  pods_[0].sure = false;
  update();
  EXPECT_EQ(started_, 0);
}

TEST_F(FaultMovingTest, AGraceEndsByTheClock) {
  broken_ = {{3, FaultClass::kXidReset}};
  pods_ = {held("train", 3)};
  update();
  EXPECT_EQ(told("train"), (std::vector<std::string>{"GpuFaultEvictionPlanned"}));
  loop_.advance(5min - 1s);
  EXPECT_EQ(started_, 0);
  loop_.advance(1s);
  EXPECT_EQ(asking(), "train");
}

TEST_F(FaultMovingTest, TheRateLimitsAndTheRestFollow) {
  policy_.node.rate = 2;
  policy_.node.rate_window = 1min;
  broken_ = {{3, FaultClass::kLost}};
  for (const auto* name : {"a", "b", "c"}) pods_.push_back(held(name, 3));
  update();
  EXPECT_EQ(asking(), "a b");
  for (const auto* name : {"a", "b"}) answer(name, EvictionNews::Kind::kLeaving);
  EXPECT_EQ(told("c"), (std::vector<std::string>{"GpuFaultEvictionPlanned"}));
  loop_.advance(1min);
  EXPECT_TRUE(asking_.contains("c"));
}

TEST_F(FaultMovingTest, MoreThanHalfTheGpusAreNoFaultOfOne) {
  pods_ = {held("train", 0)};
  for (unsigned i = 0; i < 4; ++i) broken_[i] = FaultClass::kLost;
  update();
  EXPECT_EQ(asking(), "train");
  broken_[4] = FaultClass::kLost;  // before the API server has taken it
  update();
  EXPECT_EQ(asking(), "");
  EXPECT_EQ(told("train").back(), "GpuFaultEvictionHeld");
  broken_.erase(4);
  loop_.advance(kHoldAgain);  // still held: what it knows is of before
  EXPECT_EQ(asking(), "");
  update();
  EXPECT_EQ(asking(), "train");
}

TEST_F(FaultMovingTest, ADryRunAsksNobodyAndSaysWhom) {
  policy_.node.dry_run = true;
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  for (int i = 0; i < 3; ++i) update();
  EXPECT_EQ(started_, 0);
  ASSERT_EQ(news_.size(), 1u);
  EXPECT_EQ(news_[0].reason, "GpuFaultEviction");
  EXPECT_NE(news_[0].message.find("a dry run"), std::string::npos);
  policy_.node.dry_run = false;
  update();
  EXPECT_EQ(asking(), "train");
}

TEST_F(FaultMovingTest, TheClustersShareIsAskedFirst) {
  policy_.cluster_percent = 5;
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  EXPECT_EQ(shares_asked_, 1);
  EXPECT_EQ(asking(), "train");
  update();
  EXPECT_EQ(shares_asked_, 1);
}

TEST_F(FaultMovingTest, TooManyNodesHoldAndAreAskedAgain) {
  policy_.cluster_percent = 5;
  share_ = ClusterShare{100, 6};
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  EXPECT_EQ(started_, 0);
  ASSERT_EQ(told("train"), (std::vector<std::string>{"GpuFaultEvictionHeld"}));
  EXPECT_NE(news_[0].message.find("6 of 100 nodes have broken GPUs, more than 5"), std::string::npos);
  share_ = ClusterShare{100, 5};
  loop_.advance(kHoldAgain);
  EXPECT_EQ(asking(), "train");
}

TEST_F(FaultMovingTest, AShareThatIsNotKnownHolds) {
  policy_.cluster_percent = 5;
  share_ = fail(Code::kUnavailable, "the API server is away");
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  EXPECT_EQ(started_, 0);
  EXPECT_EQ(told("train"), (std::vector<std::string>{"GpuFaultEvictionHeld"}));
}

TEST_F(FaultMovingTest, OneNodeIsNeverTooMany) {
  policy_.cluster_percent = 5;
  share_ = ClusterShare{2, 1};
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  EXPECT_EQ(asking(), "train");
}

TEST_F(FaultMovingTest, ARefusalIsSaidAndNotAskedAgain) {
  broken_ = {{3, FaultClass::kLost}};
  pods_ = {held("train", 3)};
  update();
  answer("train", EvictionNews::Kind::kRefused, "no such subresource");
  update();
  EXPECT_EQ(started_, 1);
  EXPECT_EQ(told("train").back(), "GpuFaultEvictionRefused");
  EXPECT_EQ(moving_.moved(), 0u);
}

TEST_F(FaultMovingTest, WhatIsOnlyFlaggedMovesNothing) {
  broken_ = {{3, FaultClass::kRowRemapPending}};
  pods_ = {held("train", 3)};
  update();
  EXPECT_EQ(started_, 0);
  EXPECT_TRUE(news_.empty());
}

}  // namespace
}  // namespace gpulet::agent
