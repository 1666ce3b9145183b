#include "agent/power/pod_power_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/observe/page_json.h"
#include "agent/remediation/test_faults.h"

namespace gpulet::agent {
namespace {

using config::PowerLimit;
using partition::PodPowerRequest;
using testing::ElementsAre;
using testing::IsEmpty;

const PodPowerRequest kLow{PowerLimit{300, 0}, {}};

class PodPowerIndexTest : public testing::Test {
 protected:
  PodPowerIndexTest() {
    inventory::Snapshot snapshot;
    for (const char* uuid : {"GPU-0", "GPU-1", "GPU-2"}) {
      snapshot.gpus.emplace_back();
      snapshot.gpus.back().uuid = DeviceUuid(uuid);
    }
    snapshot.gpus[1].mig_devices.emplace_back();
    snapshot.gpus[1].mig_devices.back().uuid = DeviceUuid("MIG-1");
    snapshot_ = std::make_shared<const inventory::Snapshot>(std::move(snapshot));
  }

  void use_gpus(std::set<DeviceUuid> gpus = {DeviceUuid("GPU-0"), DeviceUuid("GPU-1")}) {
    index_.use_gpus(snapshot_, std::move(gpus));
    loop_.run_ready();
  }
  void annotate(const std::string& pod, const std::string& limit) {
    reader_.add_pod(pod, {{partition::kPowerLimitAnnotation, limit}});
  }
  std::vector<PodPowerRequest> requests_of(const char* gpu) const {
    const auto found = index_.requests().find(DeviceUuid(gpu));
    return found == index_.requests().end() ? std::vector<PodPowerRequest>{} : found->second;
  }

  ManualLoop loop_;
  FakeReader reader_{loop_};
  Result<std::vector<ContainerDevices>> holders_ = std::vector<ContainerDevices>{};
  std::size_t listed_ = 0, changes_ = 0;
  std::vector<std::string> invalid_;
  inventory::SnapshotPtr snapshot_;
  PodPowerIndex index_{
      {.loop = loop_,
       .holders =
           [this](auto done) {
             ++listed_;
             loop_.post([this, done = std::move(done)] { done(holders_); });
           },
       .reader = reader_,
       .on_invalid = [this](const PodRef& pod,
                            const std::string& why) { invalid_.push_back(pod.name + ": " + why); },
       .changed = [this] { ++changes_; }}};
};

TEST_F(PodPowerIndexTest, ReadsTheAnnotationsOfHolders) {
  annotate("a", "300W");
  reader_.add_pod("b");
  holders_ = {container_with_devices("a", {"GPU-0"}), container_with_devices("b", {"GPU-0", "MIG-1"}),
              container_with_devices("other", {"GPU-2"})};
  use_gpus();
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(kLow, PodPowerRequest{}));
  EXPECT_THAT(requests_of("GPU-1"), ElementsAre(PodPowerRequest{})) << "of a MIG device";
  EXPECT_THAT(requests_of("GPU-2"), IsEmpty());
  EXPECT_THAT(reader_.asked, ElementsAre("default/a", "default/b"));
}

TEST_F(PodPowerIndexTest, SeesPodsComeAndGo) {
  use_gpus();
  loop_.advance(std::chrono::hours(1));
  EXPECT_EQ(listed_, 1u) << "nothing is polled without a Pod";
  annotate("a", "300W");
  holders_ = {container_with_devices("a", {"GPU-0"})};
  index_.refresh_soon();
  loop_.advance(kPodPowerDelays[0]);
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(kLow));
  holders_ = std::vector<ContainerDevices>{};
  loop_.advance(kPodPowerInterval);
  EXPECT_THAT(requests_of("GPU-0"), IsEmpty());
  EXPECT_EQ(changes_, 4u) << "listed, held, read, gone";
}

TEST_F(PodPowerIndexTest, FollowsAChangedAnnotation) {
  annotate("a", "300W");
  holders_ = {container_with_devices("a", {"GPU-0"})};
  use_gpus();
  annotate("a", "60%");
  loop_.advance(kPodPowerTtl + kPodPowerInterval);
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(PodPowerRequest{PowerLimit{0, 60}, {}}));
}

TEST_F(PodPowerIndexTest, AnInvalidAnnotationIsSaidOnceAndAsksForNothing) {
  annotate("a", "low");
  holders_ = {container_with_devices("a", {"GPU-0"})};
  use_gpus();
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(PodPowerRequest{}));
  loop_.advance(2 * kPodPowerTtl);
  ASSERT_EQ(invalid_.size(), 1u);
  EXPECT_TRUE(invalid_[0].starts_with("a: annotation gpulet.io/power-limit: expected watts")) << invalid_[0];
}

TEST_F(PodPowerIndexTest, WhatCannotBeReadIsReadAgainAndStaysAsItWas) {
  annotate("a", "300W");
  holders_ = {container_with_devices("a", {"GPU-0"})};
  reader_.error = Error(Code::kUnavailable, "no API server");
  use_gpus();
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(PodPowerRequest{}));
  reader_.error.reset();
  loop_.advance(kPodPowerInterval);
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(kLow));
  reader_.error = Error(Code::kUnavailable, "no API server");
  holders_ = fail(Code::kUnavailable, "no kubelet");
  loop_.advance(2 * kPodPowerTtl);
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(kLow));
}

TEST_F(PodPowerIndexTest, GpusAreAwaitedUntilTheirPodsAreRead) {
  annotate("a", "300W");
  holders_ = {container_with_devices("a", {"GPU-0"})};
  reader_.error = Error(Code::kUnavailable, "no API server");
  index_.use_gpus(snapshot_, {DeviceUuid("GPU-0"), DeviceUuid("GPU-1")});
  EXPECT_EQ(index_.awaited_gpus().size(), 2u) << "not listed yet";
  loop_.run_ready();
  EXPECT_THAT(index_.awaited_gpus(), ElementsAre(DeviceUuid("GPU-0")));
  reader_.error.reset();
  loop_.advance(kPodPowerInterval);
  EXPECT_THAT(index_.awaited_gpus(), IsEmpty());
  EXPECT_THAT(requests_of("GPU-0"), ElementsAre(kLow));
}

TEST_F(PodPowerIndexTest, GpusAreNotAwaitedForEver) {
  holders_ = fail(Code::kUnavailable, "no kubelet");
  use_gpus();
  loop_.advance(kPodPowerPatience - std::chrono::milliseconds(1));
  EXPECT_EQ(index_.awaited_gpus().size(), 2u);
  const auto changes = changes_;
  loop_.advance(std::chrono::milliseconds(1));
  EXPECT_THAT(index_.awaited_gpus(), IsEmpty());
  EXPECT_EQ(changes_, changes + 1);
  holders_ = {container_with_devices("a", {"GPU-0"})};
  reader_.error = Error(Code::kUnavailable, "no API server");
  loop_.advance(kPodPowerInterval);
  EXPECT_EQ(index_.awaited_gpus().size(), 1u);
  loop_.advance(kPodPowerPatience);
  EXPECT_THAT(index_.awaited_gpus(), IsEmpty());
}

TEST_F(PodPowerIndexTest, AValueThatDoesNotCountIsSaidOnceToThePodThatAsksForIt) {
  annotate("a", "300W");
  reader_.add_pod("b");
  holders_ = {container_with_devices("a", {"GPU-0"}), container_with_devices("b", {"GPU-0"})};
  use_gpus();
  for (int i = 0; i < 2; ++i) index_.report_problem(DeviceUuid("GPU-0"), "too low");
  index_.report_problem(DeviceUuid("GPU-1"), "too low");
  EXPECT_THAT(invalid_, ElementsAre("a: too low"));
}

TEST(PowerStatus, IsOnThePage) {
  const std::vector<GpuPowerStatus> statuses = {{.gpu = DeviceUuid("GPU-0"),
                                                 .limit = MilliWatts{500'000},
                                                 .enforced = MilliWatts{450'000},
                                                 .source = "rule"},
                                                {.gpu = DeviceUuid("GPU-1"), .problems = {"it is not set"}}};
  NodePageInput input;
  EXPECT_EQ(node_json(input).find("\"power\""), std::string::npos);
  input.power = statuses;
  EXPECT_NE(
      node_json(input).find(R"("power":[{"gpu":"GPU-0","limit":500000,"enforced":450000,"source":"rule"},)"
                            R"({"gpu":"GPU-1","problems":["it is not set"]}])"),
      std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent
