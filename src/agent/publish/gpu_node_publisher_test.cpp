#include <gtest/gtest.h>

#include "agent/publish/gpu_node_publisher.h"
#include "agent/remediation/test_faults.h"
#include "base/loop.h"
#include "dra/claimed_devices.h"
#include "dra/test_machines.h"
#include "partition/test_node.h"
#include "scheduler/model/test_nodes.h"

namespace gpulet::agent {
namespace {

using partition::test::cut;
using partition::test::gpu;

class GpuNodeBuilderTest : public testing::Test {
 protected:
  scheduler::GpuNode build_node(const std::vector<ContainerDevices>& holders = {},
                                const health::HealthView* view = nullptr) {
    OfferBuilder builder;
    const auto offers = builder.build_offers(snapshot_, config_, {});
    return build_gpu_node({.snapshot = snapshot_,
                           .offers = claim_pool_ ? std::vector<device_plugin::OfferPtr>() : offers.offers,
                           .claim_pool = claim_pool_ ? &*claim_pool_ : nullptr,
                           .config = config_,
                           .view = view,
                           .holders = holders,
                           .curves = curves_,
                           .loads = loads_,
                           .controllers = controllers_});
  }
  inventory::Snapshot snapshot_ = partition::test::node({gpu(0), gpu(1), gpu(2)});
  config::Config config_;
  std::optional<dra::DevicePool> claim_pool_;  // instead of the offers
  std::map<DeviceUuid, std::string> curves_;
  placement::LoadsByGpu loads_;
  std::vector<scheduler::ControllerLoad> controllers_;
};

TEST_F(GpuNodeBuilderTest, HasTheExpectedLoads) {
  curves_[DeviceUuid("GPU-1")] = "646464646464646464";
  curves_[DeviceUuid("GPU-gone")] = "000000000000000000";
  loads_[DeviceUuid("GPU-2")] = placement::make_gpu_load(40, 25, true);
  controllers_ = {{.controller = "team/web", .curve = {}, .hours = 24, .last_hour = 495'000}};
  const auto node = build_node();
  EXPECT_EQ(node.controllers, controllers_);
  EXPECT_EQ(node.gpus[1].load, "646464646464646464");
  EXPECT_TRUE(node.gpus[0].load.empty() && node.gpus[2].load.empty());
  EXPECT_EQ(node.gpus[2].now, loads_[DeviceUuid("GPU-2")]);
  EXPECT_EQ(node.gpus[1].now, placement::GpuLoad{});
}

TEST_F(GpuNodeBuilderTest, HasTheMeansOfItsMemoryLimits) {
  for (auto& gpu : snapshot_.gpus) gpu.memory = mebibytes(40'000);
  config_ = partition::test::sharing({partition::test::replicated("gpu", 4)});
  EXPECT_EQ(build_node().memory_limit, fraction::LimitMeans{});
  config_.gpulet.fraction.on_exceeded = config::ExceededAction::kKill;
  EXPECT_TRUE(build_node().memory_limit.ends_excess);
  config_ = partition::test::sharing({partition::test::replicated("gpu", 4)}, config::SharingStrategy::kMps);
  EXPECT_EQ(build_node().memory_limit.mps_process_mib, 10'000u);
  EXPECT_EQ(build_node().resources.at(0).units.at(0).share_mib, 10'000u);
}

TEST_F(GpuNodeBuilderTest, WholeGpusWithHoldersAndHealth) {
  snapshot_.gpus[2].health = {false, "XID 79: GPU has fallen off the bus"};
  const auto view = view_with(3, {{2, health::FaultClass::kXidReset}});
  const auto node = build_node(
      {container_with_devices("train", {"GPU-1"}, "team"), container_with_devices("gone", {"GPU-9"})}, &view);
  ASSERT_EQ(node.gpus.size(), 3U);
  EXPECT_EQ(node.models.size(), 1U);
  EXPECT_EQ(node.gpus[1].numa, 1);
  EXPECT_FALSE(health::is_allocatable(node.gpus[2].state));
  EXPECT_FALSE(node.gpus[2].reason.empty());
  ASSERT_EQ(node.resources.size(), 1U);
  EXPECT_EQ(node.resources[0].name.str(), "nvidia.com/gpu");
  ASSERT_EQ(node.resources[0].units.size(), 3U);
  EXPECT_EQ(node.resources[0].units[2].unavailable, 1U);
  ASSERT_EQ(node.allocations.size(), 1U);
  EXPECT_EQ(node.allocations[0].pod, "team/train");
  EXPECT_EQ(node.allocations[0].parts, (std::vector{scheduler::PodAllocation::Part{0, 1, 1}}));
  EXPECT_EQ(node.pairs.size(), 9U);
}

TEST_F(GpuNodeBuilderTest, MigDevicesAndModels) {
  snapshot_ = partition::test::node({cut(0, 2), gpu(1, "NVIDIA L40S")});
  snapshot_.gpus[0].mig_devices[1].memory = mebibytes(4864);
  snapshot_.gpus[0].mig_devices[1].placement_start = 1;
  config_.flags.mig_strategy = config::MigStrategy::kMixed;
  const auto node = build_node({container_with_devices("infer", {"GPU-1"})});
  EXPECT_EQ(node.models.size(), 2U);
  ASSERT_EQ(node.resources.size(), 2U);
  const auto& mig = node.resources[1];
  EXPECT_EQ(mig.name.str(), "nvidia.com/mig-1g.5gb");
  ASSERT_EQ(mig.units.size(), 2U);
  EXPECT_EQ(mig.units[1].profile, "1g.5gb");
  EXPECT_EQ(mig.units[1].memory_mib, 4864U);
  EXPECT_EQ(mig.units[1].slice, 1U);
}

TEST_F(GpuNodeBuilderTest, ClaimsAreOneResource) {
  using dra::test::make_gpu;
  const auto offered = dra::test::make_snapshot(
      {make_gpu(0), make_gpu(1), dra::test::make_partitioned_gpu(2, 2), make_gpu(3)});
  claim_pool_ = dra::make_device_pool(
      {.snapshot = offered, .withdrawn = {{DeviceUuid("GPU-0"), "is being partitioned"}}});
  snapshot_ = *offered;
  snapshot_.gpus.pop_back();  // the pool is older
  snapshot_.gpus[2].mig_devices[0].health = {false, "XID 48: double bit ECC error"};
  std::vector<ContainerDevices> holders;
  for (const auto& [pod, name] : std::map<std::string, std::string>{
           {"train", "gpu-1"}, {"too", "gpu-1"}, {"mig", "gpu-2-mig-1g10gb-19-1"}, {"gone", "gpu-3"}})
    holders.push_back({"team", pod, "main", {{ResourceName(scheduler::kClaimedResource), {DeviceId(name)}}}});
  dra::resolve_claimed_devices(snapshot_, holders);
  const auto node = build_node(holders);
  ASSERT_EQ(node.resources.size(), 1U);
  EXPECT_EQ(node.resources[0].name.str(), "gpu.nvidia.com");
  const auto& units = node.resources[0].units;
  ASSERT_EQ(units.size(), 3U) << "GPU 0 is withdrawn, GPU 2 partitioned";
  EXPECT_EQ(units[0].gpu, 1U);
  EXPECT_TRUE(units[0].profile.empty());
  EXPECT_EQ(units[1].profile, "1g.10gb");
  EXPECT_EQ(units[1].unavailable_reason, "XID 48: double bit ECC error");
  EXPECT_EQ(units[2].unavailable, 0U);
  EXPECT_EQ(units[2].slice, 1U);
  EXPECT_EQ(units[2].memory_mib, 9'984U);
  using Part = scheduler::PodAllocation::Part;
  EXPECT_EQ(node.allocations, (std::vector<scheduler::PodAllocation>{{"team/mig", {Part{0, 2, 1}}},
                                                                     {"team/too", {Part{0, 0, 1}}},
                                                                     {"team/train", {Part{0, 0, 1}}}}));
  EXPECT_EQ(scheduler::gpu_node_summary(node), "3 GPUs, 2 held");
}

TEST_F(GpuNodeBuilderTest, GpusThatClaimsShareHaveMeansOfMemoryLimits) {
  auto offered = std::make_shared<inventory::Snapshot>(*dra::test::make_snapshot({dra::test::make_gpu(0)}));
  offered->driver.has_host_pids = true;
  snapshot_ = *offered;
  config_.gpulet.fraction.on_exceeded = config::ExceededAction::kKill;
  dra::PoolInput input{.snapshot = offered};
  claim_pool_ = dra::make_device_pool(input);
  EXPECT_EQ(build_node().memory_limit, fraction::LimitMeans{}) << "whole GPUs";
  input.shares[offered->gpus[0].uuid] = {config::ShareLimit::kMemory};
  claim_pool_ = dra::make_device_pool(input);
  EXPECT_TRUE(build_node().memory_limit.ends_excess);
}

TEST_F(GpuNodeBuilderTest, SharesOfAGpuAreOneUnit) {
  config_.sharing.strategy = config::SharingStrategy::kTimeSlicing;
  config::ReplicatedResource replicated;
  replicated.name = ResourceName("nvidia.com/gpu");
  replicated.replicas = 4;
  config_.sharing.resources.push_back(std::move(replicated));
  const auto node = build_node({container_with_devices("a", {"GPU-0::1", "GPU-0::2", "GPU-2::0"})});
  ASSERT_EQ(node.resources.size(), 1U);
  EXPECT_EQ(node.resources[0].sharing, scheduler::Sharing::kTimeSlicing);
  ASSERT_EQ(node.resources[0].units.size(), 3U);
  EXPECT_EQ(node.resources[0].units[1].shares, 4U);
  EXPECT_EQ(node.resources[0].units[1].share_mib, 0U);
  EXPECT_EQ(node.allocations[0].parts,
            (std::vector{scheduler::PodAllocation::Part{0, 0, 2}, scheduler::PodAllocation::Part{0, 2, 1}}));
}

}  // namespace

namespace {

using namespace std::chrono_literals;

class GpuNodePublisherTest : public testing::Test {
 protected:
  GpuNodePublisherTest()
      : publisher_({.loop = loop_,
                    .holders =
                        [this](auto done) {
                          ++asked_;
                          loop_.post([this, done = std::move(done)] {
                            if (silent_) return done(fail(Code::kUnavailable, "away"));
                            done(std::vector<ContainerDevices>(holders_));
                          });
                        },
                    .node =
                        [this](const auto& holders) {
                          auto node = node_;
                          if (node) {
                            for (std::size_t i = 0; i < holders.size(); ++i)
                              scheduler::hold_units(*node, holders[i].pod.name, {i});
                          }
                          return node;
                        },
                    .write = [this](std::string spec) { written_.push_back(std::move(spec)); }}) {}

  void holders_named(std::vector<std::string> pods) {
    holders_.clear();
    for (auto& pod : pods) holders_.push_back({"a", std::move(pod), "main", {}});
  }

  ManualLoop loop_;
  std::optional<scheduler::GpuNode> node_ = scheduler::test_node(8, 4);
  std::vector<ContainerDevices> holders_;
  bool silent_ = false;
  int asked_ = 0;
  std::vector<std::string> written_;
  GpuNodePublisher publisher_;
};

TEST_F(GpuNodePublisherTest, WritesNothingWithoutDataOrChanges) {
  node_.reset();
  loop_.advance(30s);
  EXPECT_TRUE(written_.empty());
  node_ = scheduler::test_node(8, 4);
  publisher_.on_node_changed();
  loop_.advance(1s);
  EXPECT_EQ(written_.size(), 1U);
  loop_.advance(1h);
  EXPECT_EQ(written_.size(), 1U);
}

TEST_F(GpuNodePublisherTest, AFaultIsWrittenSoonAndABurstOnce) {
  loop_.advance(1s);
  for (std::size_t gpu = 0; gpu < 8; ++gpu) {
    scheduler::quarantine_gpu(*node_, gpu, "XID 79: GPU has fallen off the bus");
    publisher_.on_node_changed();
    loop_.advance(10ms);
  }
  loop_.advance(200ms);
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_NE(written_[1].find("8 quarantined"), std::string::npos);
}

TEST_F(GpuNodePublisherTest, WaitsForAllocationsAndBatchesMany) {
  loop_.advance(10s);
  holders_named({"p0"});
  publisher_.on_allocated();
  loop_.advance(499ms);
  EXPECT_EQ(written_.size(), 1U);
  loop_.advance(1ms);
  ASSERT_EQ(written_.size(), 2U);
  for (int i = 1; i < 8; ++i) {  // ten Pods a second
    auto pods = std::vector<std::string>{};
    for (int p = 0; p <= i; ++p) pods.push_back("p" + std::to_string(p));
    holders_named(std::move(pods));
    publisher_.on_allocated();
    loop_.advance(100ms);
  }
  loop_.advance(5s);
  EXPECT_LE(written_.size(), 4U);
  EXPECT_NE(written_.back().find("p7"), std::string::npos);
}

TEST_F(GpuNodePublisherTest, AnOfferOfMigDevicesIsBatchedToo) {
  loop_.advance(10s);
  ASSERT_EQ(written_.size(), 1U);
  const auto offer = [&](unsigned count) {
    node_->mig_offer = {{{ResourceName("nvidia.com/mig-3g.40gb"), count, ""}}};
    publisher_.on_node_changed();
    loop_.advance(300ms);
  };
  offer(1);
  EXPECT_EQ(written_.size(), 2U);
  offer(2);
  offer(3);
  EXPECT_EQ(written_.size(), 2U) << "it changes with each allocation";
  loop_.advance(1s);
  EXPECT_EQ(written_.size(), 3U);
}

TEST_F(GpuNodePublisherTest, ReleasedDevicesAreSeenByPolling) {
  holders_named({"p0"});
  loop_.advance(1s);
  holders_named({});
  loop_.advance(15s);
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_EQ(written_[1].find("p0"), std::string::npos);
}

TEST_F(GpuNodePublisherTest, LoadsAloneAreWrittenOncePerMinute) {
  loop_.advance(1s);
  for (int second = 0; second < 180; ++second) {
    node_->gpus[0].load = std::string(16, '0') + (second % 2 == 0 ? "01" : "02");
    publisher_.on_node_changed();
    loop_.advance(1s);
  }
  EXPECT_GE(written_.size(), 3U);
  EXPECT_LE(written_.size(), 4U);
}

TEST_F(GpuNodePublisherTest, AnUnavailableKubeletKeepsTheHolders) {
  holders_named({"p0"});
  loop_.advance(1s);
  silent_ = true;
  loop_.advance(1min);
  EXPECT_EQ(written_.size(), 1U);
  scheduler::quarantine_gpu(*node_, 3, "XID 79: GPU has fallen off the bus");
  publisher_.on_node_changed();
  loop_.advance(1s);
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_NE(written_[1].find("p0"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::agent
