#include "agent/remediation/cut_off_pods.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/observe/page_json.h"
#include "agent/remediation/test_faults.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

const std::string kMainId(64, 'a'), kNextId(64, 'b');

class CutOffPodsTest : public testing::Test {
 protected:
  CutOffPodsTest() {
    holders_ = {container_with_devices("a", {"GPU-1"}), container_with_devices("other", {"nic-1"})};
    add_container("a", kMainId);
    cgroups_.containers = {{kMainId, "/cgroup/main"}};
    pods_.emplace(CutOffPodPorts{
        .loop = loop_,
        .holders = [this](auto done) { loop_.post([this, done = std::move(done)] { done(holders_); }); },
        .reader = reader_,
        .nodes =
            [](const DeviceId& id) {
              return id.str().starts_with("GPU-") ? std::vector<std::string>{"/dev/nvidia1", "/dev/nvidiactl"}
                                                  : std::vector<std::string>{};
            },
        .cgroups = [this]() -> Result<DeviceCgroups> {
          if (!are_cgroups_there_) return fail(Code::kNotFound, "none");
          return cgroups_;
        },
        .check =
            [this](const auto&, const auto& directory, const auto& nodes, const auto& done) {
              checked_.push_back(directory + " " + nodes.front());
              loop_.post([this, directory, done] { done(answers_.at(directory)); });
              return std::make_shared<int>();
            },
        .notify = [this](const EvictionEvent& event) { events_.push_back(event); },
        .may_evict = [this] { return may_evict_; },
        .cut_off = [this](auto pods) { reports_.push_back(std::move(pods)); },
    });
  }

  void add_container(const std::string& pod, const std::string& id) {
    reader_.add_pod(pod);
    reader_.pods["default/" + pod].containers = {{.name = "main", .limits = {}, .id = "containerd://" + id}};
  }
  void refuse(const std::string& node = "/dev/nvidia1") {
    answers_.insert_or_assign("/cgroup/main", AccessCheck::Answer(std::optional(node)));
  }

  ManualLoop loop_;
  FakeReader reader_{loop_};
  Result<std::vector<ContainerDevices>> holders_ = std::vector<ContainerDevices>{};
  DeviceCgroups cgroups_;
  bool are_cgroups_there_ = true;
  std::map<std::string, AccessCheck::Answer> answers_{{"/cgroup/main", std::optional<std::string>()}};
  std::vector<std::string> checked_;
  std::vector<EvictionEvent> events_;
  bool may_evict_ = false;
  std::vector<std::vector<health::CutOffPod>> reports_;
  std::optional<CutOffPods> pods_;
};

TEST_F(CutOffPodsTest, AContainerWithItsDevicesIsCheckedAndNotToldAnything) {
  EXPECT_EQ(pods_->cut_off_containers(), std::nullopt);
  loop_.advance(kAccessConfirmInterval + 2 * kAccessCheckInterval);
  EXPECT_EQ(checked_.size(), 3u);
  EXPECT_EQ(checked_.front(), "/cgroup/main /dev/nvidia1");
  EXPECT_THAT(reader_.asked, ElementsAre("default/a"));  // once
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_THAT(pods_->cut_off_containers(), Optional(IsEmpty()));
}

TEST_F(CutOffPodsTest, TheSecondRefusalIsToldOnce) {
  refuse();
  loop_.advance(kAccessConfirmInterval);
  EXPECT_THAT(events_, IsEmpty());
  EXPECT_THAT(pods_->cut_off_containers(), Optional(IsEmpty()));
  loop_.advance(kAccessConfirmInterval);
  ASSERT_EQ(events_.size(), 1u);
  EXPECT_EQ(events_[0].pod, (PodRef{"default", "a", "uid-a"}));
  EXPECT_EQ(events_[0].reason, "GpuAccessLost");
  EXPECT_EQ(events_[0].message,
            "container main may not open /dev/nvidia1: its device cgroup refuses it, as after `systemctl "
            "daemon-reload`; restart the Pod to give it the GPU again");
  EXPECT_THAT(pods_->cut_off_containers(),
              Optional(ElementsAre("Pod default/a: container main may not open /dev/nvidia1")));
  loop_.advance(3 * kAccessCheckInterval);
  EXPECT_EQ(events_.size(), 1u);
  // What cannot be read changes nothing, neither of one container nor of the kubelet.
  answers_.insert_or_assign("/cgroup/main", fail(Code::kDeadlineExceeded, "frozen"));
  loop_.advance(kAccessCheckInterval);
  EXPECT_THAT(pods_->cut_off_containers(),
              Optional(ElementsAre("Pod default/a: container main may not open /dev/nvidia1")));
  holders_ = fail(Code::kUnavailable, "no kubelet");
  loop_.advance(kAccessCheckInterval);
  EXPECT_THAT(pods_->cut_off_containers(),
              Optional(ElementsAre("Pod default/a: container main may not open /dev/nvidia1")));
}

TEST_F(CutOffPodsTest, EachRoundReportsThePodsThatMayBeEvictedAsTheApiServerKnowsThem) {
  refuse();
  loop_.advance(2 * kAccessConfirmInterval);
  EXPECT_THAT(reports_, IsEmpty());
  may_evict_ = true;
  reader_.pods["default/a"].annotations[health::kGraceAnnotation] = "finish";
  reader_.namespaces["default"][health::kGraceAnnotation] = "evict";
  const Time since = loop_.now();
  loop_.advance(kAccessCheckInterval);
  ASSERT_EQ(reports_.size(), 1u);
  ASSERT_EQ(reports_[0].size(), 1u);
  EXPECT_EQ(reports_[0][0].pod.uid, "uid-a");
  EXPECT_EQ(reports_[0][0].pod.owner, "ReplicaSet");
  EXPECT_EQ(reports_[0][0].pod.annotation, "finish");
  EXPECT_EQ(reports_[0][0].pod.namespace_annotation, "evict");
  EXPECT_EQ(reports_[0][0].finding, "container main may not open /dev/nvidia1");
  EXPECT_EQ(reports_[0][0].since, since);
  // Another Pod of the name, or one that cannot be read, is not meant.
  reader_.pods["default/a"].pod.uid = "uid-another";
  loop_.advance(kAccessCheckInterval);
  ASSERT_EQ(reports_.size(), 2u);
  EXPECT_THAT(reports_[1], IsEmpty());
  reader_.pods["default/a"].pod.uid = "uid-a";
  reader_.namespace_error = Error(Code::kUnavailable, "no API server");
  loop_.advance(kAccessCheckInterval);
  EXPECT_EQ(reports_.size(), 2u);
  reader_.namespace_error.reset();
  loop_.advance(kAccessCheckInterval);
  ASSERT_EQ(reports_.size(), 3u);
  EXPECT_EQ(reports_[2].size(), 1u);
  answers_.insert_or_assign("/cgroup/main", std::optional<std::string>());
  loop_.advance(2 * kAccessCheckInterval);
  ASSERT_EQ(reports_.size(), 4u);
  EXPECT_THAT(reports_[3], IsEmpty());
}

TEST_F(CutOffPodsTest, RulesThatTheRuntimeAddsLateAreNoFinding) {
  refuse();
  loop_.advance(kAccessConfirmInterval);
  answers_.insert_or_assign("/cgroup/main", std::optional<std::string>());
  loop_.advance(kAccessConfirmInterval);
  refuse();
  loop_.advance(kAccessCheckInterval);
  EXPECT_THAT(events_, IsEmpty());
}

TEST_F(CutOffPodsTest, TheNextRunOfAContainerIsAnother) {
  refuse();
  loop_.advance(2 * kAccessConfirmInterval);
  ASSERT_EQ(events_.size(), 1u);
  cgroups_.containers = {{kNextId, "/cgroup/next"}};
  answers_.insert_or_assign("/cgroup/next", std::optional<std::string>());
  add_container("a", kNextId);
  loop_.advance(kAccessCheckInterval);
  EXPECT_EQ(checked_.back(), "/cgroup/next /dev/nvidia1");
  EXPECT_THAT(pods_->cut_off_containers(), Optional(IsEmpty()));
  holders_ = std::vector<ContainerDevices>{};
  loop_.advance(kAccessCheckInterval);
  EXPECT_EQ(events_.size(), 1u);
}

TEST_F(CutOffPodsTest, WithoutAnyAnswerNothingIsKnown) {
  answers_.insert_or_assign("/cgroup/main", fail(Code::kDeadlineExceeded, "frozen"));
  loop_.advance(kAccessConfirmInterval);
  EXPECT_EQ(pods_->cut_off_containers(), std::nullopt);
  answers_.insert_or_assign("/cgroup/main", std::optional<std::string>());
  loop_.advance(kAccessCheckInterval);
  EXPECT_THAT(pods_->cut_off_containers(), Optional(IsEmpty()));
}

TEST_F(CutOffPodsTest, WithoutTheHostsCgroupsNothingIsKnown) {
  are_cgroups_there_ = false;
  loop_.advance(kAccessConfirmInterval + kAccessCheckInterval);
  EXPECT_EQ(pods_->cut_off_containers(), std::nullopt);
  EXPECT_THAT(checked_, IsEmpty());
  EXPECT_THAT(reader_.asked, IsEmpty());
  are_cgroups_there_ = true;
  reader_.error = Error(Code::kUnavailable, "no API server");
  loop_.advance(kAccessCheckInterval);
  EXPECT_THAT(checked_, IsEmpty());
  EXPECT_THAT(pods_->cut_off_containers(), Optional(IsEmpty()));
}

TEST(CutOffPods, AreOnThePage) {
  NodePageInput input;
  EXPECT_EQ(node_json(input).find("cut_off"), std::string::npos);
  input.cut_off = {"Pod team/a: container main may not open /dev/nvidia0"};
  EXPECT_NE(node_json(input).find(R"("cut_off":["Pod team/a: container main may not open /dev/nvidia0"])"),
            std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent
