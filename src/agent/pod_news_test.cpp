#include "agent/pod_news.h"

#include <gtest/gtest.h>

#include "agent/test_faults.h"

namespace gpulet::agent {
namespace {

using health::FaultClass;

class PodNewsTest : public testing::Test {
 protected:
  static HeldPod held(const std::string& name, std::vector<unsigned> gpus,
                      std::optional<std::string> note = {}) {
    HeldPod held;
    held.pod = health::pod(name, {});
    for (const auto index : gpus) held.pod.devices.push_back(gpu(index));
    held.note = std::move(note);
    return held;
  }
  void update(const health::View& view, std::vector<HeldPod> pods, PodNewsWants wants = {true, true}) {
    events_.clear();
    notes_.clear();
    gone_.clear();
    news_.update(view, pods, wants);
  }

  std::vector<cluster::Event> events_;
  std::vector<std::pair<std::string, std::optional<std::string>>> notes_;
  std::vector<std::string> gone_;
  PodNews news_{{[this](cluster::Event event) { events_.push_back(std::move(event)); },
                 [this](const cluster::PodRef& pod, std::optional<std::string> note) {
                   notes_.emplace_back(pod.name, std::move(note));
                 },
                 [this](const cluster::PodRef& pod) { gone_.push_back(pod.name); }}};
};

TEST_F(PodNewsTest, APodThatWasNotedIsSaidToBeGoneOnce) {
  const auto broken = view_with(4, {{2, FaultClass::kLost}}), well = view_with(4, {});
  update(broken, {held("train", {2}), held("infer", {1})});
  update(well, {held("train", {2}), held("infer", {1})});
  EXPECT_TRUE(gone_.empty());
  update(well, {});
  EXPECT_EQ(gone_, std::vector<std::string>{"train"});
  update(well, {});
  EXPECT_TRUE(gone_.empty());
}

TEST_F(PodNewsTest, WhoHoldsABrokenDeviceIsToldOnceAndNobodyElse) {
  const auto view = view_with(4, {{2, FaultClass::kLost}});
  const std::vector<HeldPod> pods{held("train", {2}), held("infer", {1})};
  update(view, pods);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_TRUE(events_[0].warning);
  EXPECT_EQ(events_[0].reason, "GpuFault");
  EXPECT_EQ(events_[0].pod, (cluster::PodRef{"default", "train", "uid-train"}));
  EXPECT_NE(events_[0].message.find("GPU 2 (GPU-2) is lost"), std::string::npos) << events_[0].message;
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].first, "train");
  EXPECT_EQ(notes_[0].second, events_[0].message);
  update(view, pods);
  EXPECT_TRUE(events_.empty());
  EXPECT_TRUE(notes_.empty());
}

TEST_F(PodNewsTest, AHealedDeviceIsToldAndItsNoteTakenAway) {
  update(view_with(4, {{2, FaultClass::kLost}}), {held("train", {2})});
  update(view_with(4, {}), {held("train", {2})});
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_FALSE(events_[0].warning);
  EXPECT_EQ(events_[0].reason, "GpuRecovered");
  EXPECT_EQ(events_[0].message, "GPU 2 (GPU-2) is healthy");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second, std::nullopt);
  update(view_with(4, {}), {held("train", {2})});
  EXPECT_TRUE(events_.empty());
  EXPECT_TRUE(notes_.empty());
}

TEST_F(PodNewsTest, ANoteOfARunBeforeIsTakenAwayAndOneThatIsStillTrueStays) {
  update(view_with(4, {}), {held("train", {2}, "what was")});
  EXPECT_TRUE(events_.empty());
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second, std::nullopt);

  const auto view = view_with(4, {{1, FaultClass::kLost}});
  update(view, {held("infer", {1}, health::device_news(view.devices[1]))});
  EXPECT_TRUE(notes_.empty());
}

TEST_F(PodNewsTest, OfTwoDevicesEachIsToldAndTheNoteHasThoseThatAreLeft) {
  update(view_with(4, {{1, FaultClass::kLost}, {2, FaultClass::kRowRemapPending}}), {held("train", {1, 2})});
  ASSERT_EQ(events_.size(), 2u);
  EXPECT_EQ(events_[1].reason, "GpuDegraded");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].second->find("GPU 2"), std::string::npos);
  update(view_with(4, {{1, FaultClass::kLost}}), {held("train", {1, 2})});
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].message, "GPU 2 (GPU-2) is healthy");
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second->find("GPU 2"), std::string::npos);
}

TEST_F(PodNewsTest, WhatIsNotWantedIsNotTold) {
  const auto view = view_with(4, {{2, FaultClass::kLost}});
  update(view, {held("train", {2})}, {.events = false, .notes = true});
  EXPECT_TRUE(events_.empty());
  EXPECT_EQ(notes_.size(), 1u);
  // Wanted no more: what was noted goes.
  update(view, {held("train", {2})}, {.events = false, .notes = false});
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_EQ(notes_[0].second, std::nullopt);
}

TEST_F(PodNewsTest, AMigDeviceStandsForItself) {
  auto view = view_with(2, {});
  for (const unsigned instance : {1u, 2u}) {
    health::DeviceView mig;
    mig.scope = {DeviceUuid("GPU-1"), instance, 0};
    mig.uuid = DeviceUuid("MIG-" + std::to_string(instance));
    mig.gpu_index = 1;
    mig.mig_index = instance;
    if (instance == 2) mig.standing = health::broken(mig.scope, FaultClass::kXidReset).standing;
    view.devices.push_back(mig);
  }
  HeldPod one = held("one", {}), two = held("two", {});
  one.pod.devices = {{DeviceUuid("GPU-1"), 1, 0}};
  two.pod.devices = {{DeviceUuid("GPU-1"), 2, 0}};
  update(view, {one, two});
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].pod->name, "two");
}

}  // namespace
}  // namespace gpulet::agent
