#include "agent/published_node.h"

#include <gtest/gtest.h>

#include "agent/test_faults.h"
#include "partition/test_node.h"

namespace gpulet::agent {
namespace {

using partition::test::cut;
using partition::test::gpu;

class PublishedNodeTest : public testing::Test {
 protected:
  scheduler::GpuNode publish(const std::vector<kubelet::ContainerDevices>& holders = {},
                             const health::View* view = nullptr) {
    OfferBuilder builder;
    const auto offers = builder.build(snapshot_, config_, {});
    return published_node(snapshot_, offers.offers, config_, view, holders, loads_);
  }
  inventory::Snapshot snapshot_ = partition::test::node({gpu(0), gpu(1), gpu(2)});
  config::Config config_;
  std::map<DeviceUuid, std::string> loads_;
};

TEST_F(PublishedNodeTest, WhatIsExpectedOfAGpuIsItsLoad) {
  loads_[DeviceUuid("GPU-1")] = "646464646464646464";
  loads_[DeviceUuid("GPU-gone")] = "000000000000000000";
  const auto node = publish();
  EXPECT_EQ(node.gpus[1].load, "646464646464646464");
  EXPECT_TRUE(node.gpus[0].load.empty() && node.gpus[2].load.empty());
}

TEST_F(PublishedNodeTest, WholeGpusWithTheirHoldersAndHealth) {
  snapshot_.gpus[2].health = {false, "XID 79: GPU has fallen off the bus"};
  const auto view = view_with(3, {{2, health::FaultClass::kXidReset}});
  const auto node = publish({container("train", {"GPU-1"}, "team"), container("gone", {"GPU-9"})}, &view);
  ASSERT_EQ(node.gpus.size(), 3U);
  EXPECT_EQ(node.models.size(), 1U);
  EXPECT_EQ(node.gpus[1].numa, 1);
  EXPECT_FALSE(health::offered(node.gpus[2].state));
  EXPECT_FALSE(node.gpus[2].reason.empty());
  ASSERT_EQ(node.resources.size(), 1U);
  EXPECT_EQ(node.resources[0].name.str(), "nvidia.com/gpu");
  ASSERT_EQ(node.resources[0].units.size(), 3U);
  EXPECT_EQ(node.resources[0].units[2].out, 1U);
  ASSERT_EQ(node.holders.size(), 1U);
  EXPECT_EQ(node.holders[0].pod, "team/train");
  EXPECT_EQ(node.holders[0].parts, (std::vector{scheduler::PodHolding::Part{0, 1, 1}}));
  EXPECT_EQ(node.pairs.size(), 9U);
}

TEST_F(PublishedNodeTest, MigDevicesAndTheModelsOfEachKind) {
  snapshot_ = partition::test::node({cut(0, 2), gpu(1, "NVIDIA L40S")});
  snapshot_.gpus[0].mig_devices[1].memory = mebibytes(4864);
  snapshot_.gpus[0].mig_devices[1].placement_start = 1;
  config_.flags.mig_strategy = config::MigStrategy::kMixed;
  const auto node = publish({container("infer", {"GPU-1"})});
  EXPECT_EQ(node.models.size(), 2U);
  ASSERT_EQ(node.resources.size(), 2U);
  const auto& mig = node.resources[1];
  EXPECT_EQ(mig.name.str(), "nvidia.com/mig-1g.5gb");
  ASSERT_EQ(mig.units.size(), 2U);
  EXPECT_EQ(mig.units[1].profile, "1g.5gb");
  EXPECT_EQ(mig.units[1].memory_mib, 4864U);
  EXPECT_EQ(mig.units[1].slice, 1U);
}

TEST_F(PublishedNodeTest, SharesOfAGpuAreOneUnit) {
  config_.sharing.strategy = config::SharingStrategy::kTimeSlicing;
  config::ReplicatedResource replicated;
  replicated.name = ResourceName("nvidia.com/gpu");
  replicated.replicas = 4;
  config_.sharing.resources.push_back(std::move(replicated));
  const auto node = publish({container("a", {"GPU-0::1", "GPU-0::2", "GPU-2::0"})});
  ASSERT_EQ(node.resources.size(), 1U);
  EXPECT_EQ(node.resources[0].sharing, scheduler::Sharing::kTimeSlicing);
  ASSERT_EQ(node.resources[0].units.size(), 3U);
  EXPECT_EQ(node.resources[0].units[1].shares, 4U);
  EXPECT_EQ(node.resources[0].units[1].share_mib, 0U);
  EXPECT_EQ(node.holders[0].parts,
            (std::vector{scheduler::PodHolding::Part{0, 0, 2}, scheduler::PodHolding::Part{0, 2, 1}}));
}

}  // namespace
}  // namespace gpulet::agent
