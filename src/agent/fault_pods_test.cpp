#include "agent/fault_pods.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/test_faults.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::FaultClass;
using Holders = std::vector<kubelet::ContainerDevices>;

class FaultPodsTest : public testing::Test {
 protected:
  void update(std::map<unsigned, FaultClass> classes, FaultPods::Wants wants = {}) {
    pods_.update(view_with(8, classes), wants);
    loop_.run_ready();
  }
  std::string names() const {
    std::string out;
    for (const auto& held : pods_.pods()) out += (out.empty() ? "" : " ") + held.pod.name;
    return out;
  }
  std::ptrdiff_t asked(const std::string& what) const { return std::ranges::count(reader_.asked, what); }

  ManualLoop loop_;
  FakeReader reader_{loop_};
  Result<Holders> holders_ = Holders{container("train", {"GPU-3"}), container("infer", {"GPU-4::1"})};
  bool answers_ = true;
  int lists_ = 0, rounds_ = 0;
  FaultPods pods_{{.loop = loop_,
                   .holders =
                       [this](auto done) {
                         ++lists_;
                         if (answers_) loop_.post([this, done = std::move(done)] { done(holders_); });
                       },
                   .reader = reader_,
                   .changed = [this] { ++rounds_; }},
                  1};
};

TEST_F(FaultPodsTest, NobodyIsAskedWhileAllIsWell) {
  update({});
  loop_.advance(1h);
  EXPECT_EQ(lists_, 0);
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(FaultPodsTest, WhoHoldsABrokenDeviceIsKnownAndNoOtherPodIsLookedAt) {
  reader_.add("train", {{health::kGraceAnnotation, "stay"}, {health::kFaultAnnotation, "old"}});
  reader_.add("infer");
  update({{3, FaultClass::kLost}});
  ASSERT_EQ(names(), "train");
  const auto held = pods_.pods().front();
  EXPECT_EQ(held.pod.uid, "uid-train");
  EXPECT_EQ(held.pod.owner, "ReplicaSet");
  EXPECT_EQ(held.pod.annotation, "stay");
  EXPECT_EQ(held.note, "old");
  EXPECT_EQ(held.pod.devices, (std::vector<health::Scope>{gpu(3)}));
  EXPECT_TRUE(held.sure);  // its own word goes before its namespace's
  EXPECT_EQ(reader_.asked, (std::vector<std::string>{"default/train"}));
  EXPECT_EQ(rounds_, 1);
}

TEST_F(FaultPodsTest, AReplicaIsItsDevice) {
  reader_.add("infer");
  update({{4, FaultClass::kLost}});
  EXPECT_EQ(names(), "infer");
  EXPECT_FALSE(pods_.pods().front().sure);  // nobody asked its namespace
}

TEST_F(FaultPodsTest, TheNamespaceIsAskedOnceForAllItsPods) {
  reader_.add("train");
  reader_.add("infer");
  reader_.namespaces["default"] = {{health::kGraceAnnotation, "finish"}};
  update({{3, FaultClass::kLost}, {4, FaultClass::kLost}}, {.namespaces = true});
  ASSERT_EQ(names(), "infer train");
  for (const auto& held : pods_.pods()) {
    EXPECT_TRUE(held.sure);
    EXPECT_EQ(held.pod.namespace_annotation, "finish");
  }
  EXPECT_EQ(asked("default"), 1);
}

TEST_F(FaultPodsTest, ANamespaceThatIsRefusedLeavesItsPodsUnsure) {
  reader_.add("train");
  reader_.namespace_trouble = Error(Code::kPermissionDenied, "no", "get on namespaces");
  update({{3, FaultClass::kLost}}, {.namespaces = true});
  ASSERT_EQ(names(), "train");
  EXPECT_FALSE(pods_.pods().front().sure);
  EXPECT_NE(pods_.trouble().find("get on namespaces"), std::string::npos);
  reader_.namespace_trouble.reset();
  loop_.advance(kPodsBackoff.longest);
  EXPECT_TRUE(pods_.pods().front().sure);
  EXPECT_EQ(pods_.trouble(), "");
}

TEST_F(FaultPodsTest, PodsThatComeAndGoAreSeenWhileThereIsAFault) {
  reader_.add("train");
  reader_.add("next");
  update({{3, FaultClass::kLost}});
  holders_ = Holders{container("next", {"GPU-3"})};
  loop_.advance(kPodsPoll);
  EXPECT_EQ(names(), "next");
  update({});
  const int before = lists_;
  loop_.advance(1h);
  EXPECT_EQ(lists_, before);
}

TEST_F(FaultPodsTest, WhatWasSaidIsAskedAgainAfterAWhile) {
  reader_.add("train");
  update({{3, FaultClass::kLost}});
  reader_.add("train", {{health::kGraceAnnotation, "stay"}});
  loop_.advance(kFactsFresh + kPodsPoll);
  EXPECT_EQ(pods_.pods().front().pod.annotation, "stay");
  EXPECT_EQ(asked("default/train"), 2);
}

TEST_F(FaultPodsTest, APodOfTheSameNameOnAnotherDeviceIsAskedAnew) {
  reader_.add("train");
  update({{3, FaultClass::kLost}, {5, FaultClass::kLost}});
  reader_.add("train", {}, "second");
  holders_ = Holders{container("train", {"GPU-5"})};
  loop_.advance(kPodsPoll);
  EXPECT_EQ(pods_.pods().front().pod.uid, "second");
}

TEST_F(FaultPodsTest, WhatWasLearnedLongAgoIsNothing) {
  reader_.add("train");
  update({{3, FaultClass::kLost}});
  update({});
  EXPECT_EQ(names(), "train");  // it is to hear that its device is well
  loop_.advance(1h);
  answers_ = false;
  pods_.update(view_with(8, {{3, FaultClass::kLost}}), {});
  EXPECT_EQ(names(), "");
}

TEST_F(FaultPodsTest, OneThatIsGoneForTheApiServerIsNone) {
  update({{3, FaultClass::kLost}});
  EXPECT_EQ(names(), "");
  EXPECT_EQ(rounds_, 1);
}

TEST_F(FaultPodsTest, AKubeletThatIsAwayIsAskedAgain) {
  reader_.add("train");
  holders_ = fail(Code::kUnavailable, "nobody listens");
  update({{3, FaultClass::kLost}});
  EXPECT_EQ(names(), "");
  EXPECT_NE(pods_.trouble().find("nobody listens"), std::string::npos);
  holders_ = Holders{container("train", {"GPU-3"})};
  loop_.advance(kPodsBackoff.longest);
  EXPECT_EQ(names(), "train");
}

TEST_F(FaultPodsTest, AnAnswerThatNeverComesIsWaitedForNoLonger) {
  reader_.add("train");
  answers_ = false;
  update({{3, FaultClass::kLost}});
  answers_ = true;
  loop_.advance(kHoldersLimit + kPodsBackoff.longest);
  EXPECT_EQ(names(), "train");
}

TEST_F(FaultPodsTest, ABurstOfChangesIsOneMoreLook) {
  reader_.add("train");
  for (unsigned i = 0; i < 100; ++i) pods_.update(view_with(8, {{i % 8, FaultClass::kLost}}), {});
  loop_.run_ready();
  loop_.advance(kLookAgain);
  EXPECT_EQ(lists_, 2);
}

TEST_F(FaultPodsTest, AllAreReadOnceWhereNotesOfBeforeAreToBeFound) {
  reader_.add("train", {{health::kFaultAnnotation, "old"}});
  reader_.add("infer");
  update({}, {.all = true});
  EXPECT_EQ(names(), "infer train");
  EXPECT_EQ(lists_, 1);
  update({}, {.all = true});
  loop_.advance(1h);
  EXPECT_EQ(lists_, 1);
}

TEST_F(FaultPodsTest, ADeviceThatHasGoneIsStillWhoseItWas) {
  reader_.add("train");
  holders_ = Holders{container("train", {"MIG-1"})};
  auto view = view_with(8, {});
  health::DeviceView mig;
  mig.scope = {DeviceUuid("GPU-3"), 2, 0};
  mig.uuid = DeviceUuid("MIG-1");
  view.devices.push_back(mig);
  pods_.update(view, {});
  update({{3, FaultClass::kLost}});  // and its MIG device is no more in the view
  EXPECT_EQ(names(), "train");
  EXPECT_EQ(pods_.pods().front().pod.devices, (std::vector<health::Scope>{mig.scope}));
}

}  // namespace
}  // namespace gpulet::agent
