#include "partition/limit_means.h"

#include <gtest/gtest.h>

#include "partition/test_node.h"

namespace gpulet::partition {
namespace {

using config::ExceededAction;
using config::SharingStrategy;
using fraction::LimitGrade;

class LimitMeansTest : public testing::Test {
 protected:
  LimitMeansTest() {
    snapshot_ = test::node({test::gpu(0), test::gpu(1), test::cut(2, 1)});
    for (auto& gpu : snapshot_.gpus) gpu.memory = mebibytes(40'000);
    snapshot_.gpus[2].mig_devices[0].memory = mebibytes(5000);
  }

  Resource shared_resource(SharingStrategy sharing, const Device& device) {
    Resource resource;
    resource.name = ResourceName("nvidia.com/gpu.shared");
    resource.sharing = sharing;
    resource.replicas = 4;
    for (unsigned n = 0; n < resource.replicas; ++n) resource.devices.push_back(make_replica(device, n));
    return resource;
  }
  Resource shared_gpu(SharingStrategy sharing, std::size_t gpu = 0) {
    return shared_resource(sharing, make_gpu_device(snapshot_, gpu));
  }
  fraction::LimitMeans common(const std::vector<Resource>& resources) {
    std::vector<const Resource*> all;
    for (const auto& resource : resources) all.push_back(&resource);
    return common_limit_means(all, snapshot_, config_);
  }
  LimitGrade grade_with(ExceededAction action, const std::vector<Resource>& resources) {
    config_.gpulet.fraction.on_exceeded = action;
    return fraction::grade_of_node(common(resources)).grade;
  }

  inventory::Snapshot snapshot_;
  config::Config config_;
};

TEST_F(LimitMeansTest, ANodeWithoutLimitsHasNoReasons) {
  EXPECT_EQ(common({shared_gpu(SharingStrategy::kTimeSlicing)}), fraction::LimitMeans{});
  config_.gpulet.fraction.on_exceeded = ExceededAction::kKill;
  Resource whole;
  whole.devices = {make_gpu_device(snapshot_, 0)};
  EXPECT_EQ(common({whole}), fraction::LimitMeans{}) << "nothing is shared";
  EXPECT_EQ(common({}), fraction::LimitMeans{});
}

TEST_F(LimitMeansTest, OnlyAnActionThatEndsTheExcessIsAnAudit) {
  const std::vector sliced{shared_gpu(SharingStrategy::kTimeSlicing)};
  EXPECT_EQ(grade_with(ExceededAction::kKill, sliced), LimitGrade::kAudited);
  EXPECT_EQ(grade_with(ExceededAction::kEvict, sliced), LimitGrade::kAudited);
  EXPECT_EQ(grade_with(ExceededAction::kWarn, sliced), LimitGrade::kNone);
  EXPECT_EQ(common(sliced).no_audit, "gpulet.fraction.onExceeded is warn: excess is reported, not ended");
  EXPECT_EQ(common(sliced).no_driver_limit, "whether the driver limits memory is not known");
}

// The audit runs, but finds no container of any process.
TEST_F(LimitMeansTest, WithoutHostPidsThereIsNoAudit) {
  const std::vector sliced{shared_gpu(SharingStrategy::kTimeSlicing)};
  snapshot_.driver.has_host_pids = false;
  EXPECT_EQ(grade_with(ExceededAction::kKill, sliced), LimitGrade::kNone);
  EXPECT_EQ(common(sliced).no_audit, fraction::kNoHostPids);
  EXPECT_EQ(grade_with(ExceededAction::kWarn, sliced), LimitGrade::kNone);
  EXPECT_EQ(common(sliced).no_audit, "gpulet.fraction.onExceeded is warn: excess is reported, not ended");
}

TEST_F(LimitMeansTest, TheDriverLimitsWhereItCanAndTheSettingSaysSo) {
  const std::vector sliced{shared_gpu(SharingStrategy::kTimeSlicing)};
  config_.gpulet.fraction.driver_limits = true;
  snapshot_.driver.why_no_memory_limits = "it is too old";
  EXPECT_EQ(grade_with(ExceededAction::kNone, sliced), LimitGrade::kNone);
  EXPECT_EQ(common(sliced).no_driver_limit, "it is too old");
  snapshot_.driver.has_memory_limits = true;
  EXPECT_EQ(grade_with(ExceededAction::kNone, sliced), LimitGrade::kKernel);
  config_.gpulet.fraction.driver_limits = false;
  EXPECT_EQ(grade_with(ExceededAction::kKill, sliced), LimitGrade::kAudited);
  EXPECT_EQ(common(sliced).no_driver_limit, "gpulet.fraction.driverLimits is false");
}

TEST_F(LimitMeansTest, MpsLimitsAProcessToItsShare) {
  auto mps = shared_gpu(SharingStrategy::kMps);
  EXPECT_EQ(grade_with(ExceededAction::kNone, {mps}), LimitGrade::kMps);
  EXPECT_EQ(common({mps}).mps_process_mib, 10'000u);
  for (auto& device : mps.devices) device.share = config::MpsShare{.memory = 60, .threads = 10};
  EXPECT_EQ(common({mps}).mps_process_mib, 24'000u);
  for (auto& device : mps.devices) device.has_memory_limit = false;
  EXPECT_EQ(common({mps}), fraction::LimitMeans{}) << "only its threads are limited";
}

TEST_F(LimitMeansTest, TheLeastOfAllResourcesCounts) {
  const std::vector both{shared_gpu(SharingStrategy::kMps), shared_gpu(SharingStrategy::kTimeSlicing, 1)};
  EXPECT_EQ(grade_with(ExceededAction::kNone, both), LimitGrade::kNone);
  EXPECT_EQ(grade_with(ExceededAction::kKill, both), LimitGrade::kAudited);
}

TEST_F(LimitMeansTest, SharedMigDevicesAreNotAudited) {
  const std::vector sliced{shared_resource(SharingStrategy::kTimeSlicing, make_mig_device(snapshot_, 2, 0))};
  EXPECT_EQ(grade_with(ExceededAction::kKill, sliced), LimitGrade::kNone);
  EXPECT_EQ(common(sliced).no_audit, "MIG devices are not audited");
  EXPECT_EQ(common(sliced).no_driver_limit, "the driver has no memory limits for GPUs in MIG mode");
  const std::vector mps{shared_resource(SharingStrategy::kMps, make_mig_device(snapshot_, 2, 0))};
  EXPECT_EQ(common(mps).mps_process_mib, 1250u);
}

TEST_F(LimitMeansTest, ADeviceOfAnOlderSnapshotIsIgnored) {
  const std::vector sliced{shared_gpu(SharingStrategy::kTimeSlicing, 1)};
  config_.gpulet.fraction.on_exceeded = ExceededAction::kKill;
  snapshot_.gpus.resize(1);
  EXPECT_EQ(common(sliced), fraction::LimitMeans{});
}

}  // namespace
}  // namespace gpulet::partition
