// On the driver's thread, with a simulated driver.
#include "agent/dra/node_claim_partitions.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "config/config.h"
#include "mig/test_states.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"

namespace gpulet::agent {
namespace {

const dra::Partition kSmall{"1g.10gb", 19, {3, 1}};

class NodeClaimPartitionsTest : public testing::Test {
 protected:
  void SetUp() override {
    mig::states::set_mig_mode(root_.edit_machine()->gpus[0]);
    config_.gpulet.dra.enabled = true;
    config::PartitionRule rule;
    rule.mode = config::DynamicMig{{"1g.10gb"}};
    config_.gpulet.partition = {rule};
    thread_.run_on_loop([&] {
      driver_ =
          std::make_unique<NvmlDriver>(thread_.loop(), NvmlDriverOptions{.driver_root = root_.sim_root()});
      partitions_ = std::make_unique<NodeClaimPartitions>(
          ClaimPartitionsPorts{.loop = thread_.loop(),
                               .driver = [this] { return has_driver_ ? driver_.get() : nullptr; },
                               .request_reading = [this] { ++readings_; },
                               .changed = [this] { changes_.push_value(0); }});
    });
    const auto opened = thread_.await<Status>([&](auto done) { driver_->open_driver(done); });
    ASSERT_TRUE(opened && *opened);
    read_snapshot();
  }
  void TearDown() override {
    thread_.run_on_loop([&] {
      partitions_.reset();
      driver_.reset();
    });
  }
  void read_snapshot() {
    const auto read =
        thread_.await<Result<inventory::Snapshot>>([&](auto done) { driver_->read_snapshot(done); });
    ASSERT_TRUE(read && *read);
    snapshot_ = **read;
  }
  std::map<DeviceUuid, dra::DynamicGpu> dynamic(const std::map<std::string, dra::ClaimRecord>& records = {}) {
    std::map<DeviceUuid, dra::DynamicGpu> found;
    thread_.run_on_loop([&] { found = partitions_->dynamic_gpus(snapshot_, config_, {}, records, held_); });
    return found;
  }
  Result<DeviceUuid> make() {
    const auto made = thread_.await<Result<DeviceUuid>>(
        [&](auto done) { partitions_->make_partition(gpu(), kSmall, false, done); });
    return made.value_or(fail(Code::kInternal, "it never returned"));
  }
  const DeviceUuid& gpu() const { return snapshot_.gpus[0].uuid; }

  nvml::SimRoot root_{2};
  nvml::LoopThread thread_;
  std::unique_ptr<NvmlDriver> driver_;
  std::unique_ptr<NodeClaimPartitions> partitions_;
  nvml::Collected<int> changes_;
  int readings_ = 0;
  std::map<DeviceUuid, std::set<dra::Partition>> held_;
  bool has_driver_ = true;
  config::Config config_;
  inventory::Snapshot snapshot_;
};

TEST_F(NodeClaimPartitionsTest, ReadsTheProfilesOfGpusInMigModeOnce) {
  auto found = dynamic();
  ASSERT_EQ(found.size(), 1u) << "the other GPU is whole";
  EXPECT_TRUE(found.at(gpu()).profiles.empty());
  EXPECT_EQ(changes_.wait_for_values(1).size(), 1u);
  found = dynamic();
  EXPECT_EQ(found.at(gpu()).allowed, std::vector<std::string>{"1g.10gb"});
  EXPECT_GT(found.at(gpu()).profiles.size(), 3u);
  EXPECT_EQ(changes_.size(), 1u);
  config_.gpulet.partition.clear();
  EXPECT_TRUE(dynamic().empty());
}

TEST_F(NodeClaimPartitionsTest, MakesAndRemoves) {
  const auto made = make();
  ASSERT_TRUE(made) << made.error().full_message();
  EXPECT_EQ(changes_.wait_for_values(1).size(), 1u);
  read_snapshot();
  ASSERT_EQ(snapshot_.gpus[0].mig_devices.size(), 1u);
  EXPECT_EQ(snapshot_.gpus[0].mig_devices[0].uuid, *made);
  EXPECT_EQ(snapshot_.gpus[0].mig_devices[0].placement_start, 3u);
  const auto there =
      thread_.await<Result<DeviceUuid>>([&](auto done) { partitions_->find_partition(gpu(), kSmall, done); });
  ASSERT_TRUE(there && *there);
  EXPECT_EQ(**there, *made);

  dra::ClaimRecord record{.uid = "uid-1", .name_space = "team", .name = "a", .devices = {}};
  record.devices.resize(1);
  record.devices[0].partition = {gpu(), kSmall, true};
  EXPECT_EQ(dynamic({{"uid-1", record}}).at(gpu()).made, std::set{kSmall});

  const auto removed =
      thread_.await<Status>([&](auto done) { partitions_->remove_partition(gpu(), kSmall, *made, done); });
  ASSERT_TRUE(removed && *removed);
  EXPECT_EQ(dynamic().at(gpu()).removed, std::set{*made}) << "the snapshot has it still";
  read_snapshot();
  EXPECT_TRUE(snapshot_.gpus[0].mig_devices.empty());
  EXPECT_TRUE(dynamic().at(gpu()).removed.empty());
  thread_.run_on_loop([this] { EXPECT_EQ(readings_, 2); });
}

TEST_F(NodeClaimPartitionsTest, WithoutADriverItIsUnavailable) {
  has_driver_ = false;
  EXPECT_EQ(make().error().code(), Code::kUnavailable);
  EXPECT_TRUE(dynamic().at(gpu()).profiles.empty());
}

}  // namespace
}  // namespace gpulet::agent
