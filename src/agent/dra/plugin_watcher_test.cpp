#include "agent/dra/plugin_watcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "agent/plugin/offers.h"
#include "dra/device_pool.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

inventory::SnapshotPtr switched_node() {
  auto snapshot = std::make_shared<inventory::Snapshot>();
  for (unsigned i = 0; i < 4; ++i) {
    inventory::Gpu gpu;
    gpu.index = gpu.minor = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.model = "NVIDIA H100 80GB HBM3";
    snapshot->gpus.push_back(gpu);
  }
  auto& cut = snapshot->gpus[3];
  cut.mig_enabled = cut.mig_capable = true;
  inventory::MigDevice mig;
  mig.uuid = DeviceUuid("MIG-3-0");
  mig.profile = "1g.10gb";
  mig.gpu_slices = mig.compute_slices = 1;
  cut.mig_devices = {mig};
  return snapshot;
}

ContainerDevices plugin_container(const std::string& pod, const std::string& resource,
                                  std::vector<std::string> ids) {
  ContainerDevices made{.pod = {"team", pod}, .container = "main", .devices = {}};
  for (auto& id : ids) made.devices[ResourceName(resource)].emplace_back(std::move(id));
  return made;
}

using GpuHolders = std::map<DeviceUuid, std::string>;

TEST(PluginHolders, AreThoseOfTheDevicePluginOnly) {
  const std::vector<ContainerDevices> containers = {
      plugin_container("whole", "nvidia.com/gpu", {"GPU-0"}),
      plugin_container("share", "nvidia.com/gpu.shared", {"GPU-1::7"}),
      plugin_container("claimed", std::string(dra::kDriverName), {"GPU-2"}),
      plugin_container("part", "nvidia.com/mig-1g.10gb", {"MIG-3-0"}),
      plugin_container("other", "example.com/nic", {"nic-0"})};
  EXPECT_EQ(plugin_holders(containers, *switched_node()),
            (GpuHolders{{DeviceUuid("GPU-0"), "Pod team/whole"},
                        {DeviceUuid("GPU-1"), "Pod team/share"},
                        {DeviceUuid("GPU-3"), "Pod team/part"}}));
}

TEST(ClaimHolders, AreThoseOfRecordsWithoutAdmins) {
  const std::map<std::string, dra::ClaimRecord> records = {
      {"u1", {"u1", "team", "whole", {{"gpu", "node-1", "gpu-0", DeviceUuid("GPU-0")}}}},
      {"u2", {"u2", "team", "admin", {{"gpu", "node-1", "gpu-1", DeviceUuid("GPU-1"), true}}}},
      {"u3", {"u3", "", "", {{"gpu", "node-1", "gpu-3-mig-1g10gb-19-0", DeviceUuid("MIG-3-0")}}}},
      {"u4", {"u4", "team", "gone", {{"gpu", "node-1", "gpu-2-mig-1g10gb-19-0", DeviceUuid("MIG-old")}}}},
      {"u5", {"u5", "team", "left", {{"gpu", "node-1", "gpu-1", DeviceUuid("GPU-left")}}}}};
  EXPECT_EQ(claim_holders(records, *switched_node()), (GpuHolders{{DeviceUuid("GPU-0"), "claim team/whole"},
                                                                  {DeviceUuid("GPU-2"), "claim team/gone"},
                                                                  {DeviceUuid("GPU-3"), "claim uid u3"}}));
}

TEST(SharedGpus, AreThoseOfRulesThatNoClaimHoldsWhole) {
  config::Config config;
  const config::ConsumableShares shares{config::ShareLimit::kCount, 4};
  auto& rule = config.gpulet.partition.emplace_back();
  rule.devices = config::GpuRefs{{0, 1, {}}};
  rule.mode = config::Whole{.name = {}, .consumable_shares = shares};
  const DeviceUuid first("GPU-0"), second("GPU-1");
  EXPECT_EQ(shared_gpus(*switched_node(), config, {}, {}),
            (std::map<DeviceUuid, config::ConsumableShares>{{first, shares}, {second, shares}}));
  std::map<std::string, dra::ClaimRecord> records = {
      {"u1", {"u1", "team", "whole", {{"gpu", "node-1", "gpu-0", first}}}},
      {"u2", {"u2", "team", "share", {{"gpu", "node-1", "gpu-1", second, false, "share-1"}}}},
      {"u3", {"u3", "team", "admin", {{"gpu", "node-1", "gpu-1", second, true}}}}};
  EXPECT_EQ(shared_gpus(*switched_node(), config, {}, records),
            (std::map<DeviceUuid, config::ConsumableShares>{{second, shares}}));
}

TEST(NodeBehind, ComparesWhatIsAllocatable) {
  const ExpectedAllocatable expected = {{"nvidia.com/gpu", 4}, {"nvidia.com/gpu.shared", 0}};
  const auto behind = [&](const std::string& allocatable) {
    return node_behind(R"({"status":{"allocatable":)" + allocatable + "}}", expected);
  };
  EXPECT_EQ(behind(R"({"nvidia.com/gpu":"4"})"), "");
  EXPECT_EQ(behind(R"({"nvidia.com/gpu":"3","nvidia.com/gpu.shared":"0","cpu":"64"})"), "");
  EXPECT_EQ(behind("{}"), "");
  EXPECT_EQ(node_behind(R"({"status":{}})", expected), "");
  EXPECT_EQ(behind(R"({"nvidia.com/gpu":"8"})"), "the Node shows nvidia.com/gpu: 8, expected 4");
  EXPECT_EQ(behind(R"({"nvidia.com/gpu.shared":"1"})"),
            "the Node shows nvidia.com/gpu.shared: 1, expected 0");
  EXPECT_EQ(behind(R"({"nvidia.com/gpu":"1k"})"), "the Node shows nvidia.com/gpu: 1k, expected 4");
  for (const auto* text : {"", "[]", "{}", R"({"status":3})"})
    EXPECT_EQ(node_behind(text, expected), "the Node has no status") << text;
}

TEST(ExpectedAllocatable, CountsHealthyDevicesAndKnowsEveryName) {
  const auto snapshot = switched_node();
  config::Config config;
  config.gpu_resources = {{"*", ResourceName("nvidia.com/gpu")}};
  EXPECT_EQ(expected_allocatable({}, *snapshot, config, {}), (ExpectedAllocatable{{"nvidia.com/gpu", 0}}));
  PlanInputs inputs;
  inputs.facts.offers = {{DeviceUuid("GPU-0"), {partition::OfferStage::kClaims}},
                         {DeviceUuid("GPU-1"), {partition::OfferStage::kLeavingDevicePlugin, "is held"}}};
  const auto built = OfferBuilder().build_offers(*snapshot, config, inputs);
  EXPECT_EQ(expected_allocatable(built.offers, *snapshot, config, {}),
            (ExpectedAllocatable{{"nvidia.com/gpu", 2}}));
  ASSERT_EQ(built.offers.size(), 1u);
  EXPECT_EQ(built.offers[0]->elsewhere,
            (std::map<DeviceUuid, std::string>{{DeviceUuid("GPU-0"), "is offered by claims"}}));
}

class PluginWatcherTest : public testing::Test {
 protected:
  void run(Duration time) { loop_.advance(time); }

  ManualLoop loop_;
  std::vector<std::string> asked_;
  bool answers_ = true;
  std::optional<Error> error_;
  std::vector<partition::PluginReading> readings_;
  PluginWatcher watcher_{{
      .loop = loop_,
      .list_containers =
          [this](auto done) {
            asked_.emplace_back("containers");
            if (!answers_) return;
            loop_.post([this, done] {
              if (error_) return done(fail(*error_));
              done(std::vector{plugin_container("a", "nvidia.com/gpu", {"GPU-0"})});
            });
          },
      .list_allocatable =
          [this](auto done) {
            asked_.emplace_back("allocatable");
            loop_.post([done] {
              done(device_plugin::DevicesByResource{{ResourceName("nvidia.com/gpu"), {DeviceId("GPU-1")}}});
            });
          },
      .read_node =
          [this](auto done) {
            asked_.emplace_back("node");
            loop_.post([done] {
              done(std::optional<std::string>(R"({"status":{"allocatable":{"nvidia.com/gpu":"2"}}})"));
            });
          },
      .snapshot = [] { return switched_node(); },
      .expected = [] { return ExpectedAllocatable{{"nvidia.com/gpu", 1}}; },
      .on_reading = [this](const auto& reading) { readings_.push_back(reading); },
  }};
};

TEST_F(PluginWatcherTest, ReadsInOrderWhileItIsActive) {
  run(1s);
  EXPECT_TRUE(asked_.empty());
  const auto began = loop_.now();
  watcher_.set_active(true);
  watcher_.set_active(true);
  loop_.run_ready();
  EXPECT_EQ(asked_, (std::vector<std::string>{"containers", "allocatable", "node"}));
  ASSERT_EQ(readings_.size(), 1u);
  EXPECT_EQ(readings_[0].began, began);
  EXPECT_EQ(readings_[0].holders, (GpuHolders{{DeviceUuid("GPU-0"), "Pod team/a"}}));
  EXPECT_EQ(readings_[0].allocatable, std::set{DeviceUuid("GPU-1")});
  EXPECT_EQ(readings_[0].node_behind, "the Node shows nvidia.com/gpu: 2, expected 1");
  run(1min);
  EXPECT_GE(readings_.size(), 10u) << "a Pod ends unannounced";
  EXPECT_LE(readings_.size(), 30u);
  watcher_.set_active(false);
  const auto count = asked_.size();
  run(1min);
  EXPECT_EQ(asked_.size(), count);
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(PluginWatcherTest, AnErrorIsNoReading) {
  error_ = Error(Code::kUnavailable, "the kubelet is away");
  watcher_.set_active(true);
  run(10s);
  EXPECT_TRUE(readings_.empty());
  EXPECT_EQ(std::ranges::count(asked_, "node"), 0);
  error_.reset();
  run(5s);
  EXPECT_FALSE(readings_.empty());
}

TEST_F(PluginWatcherTest, AClientThatIsReplacedIsAskedAgain) {
  answers_ = false;
  watcher_.set_active(true);
  run(1s);
  answers_ = true;
  run(kPluginReadLimit);
  EXPECT_FALSE(readings_.empty());
}

}  // namespace
}  // namespace gpulet::agent
