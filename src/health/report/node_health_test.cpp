#include <gtest/gtest.h>

#include "health/report/node_health.h"
#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

inventory::Snapshot device_with_name() {
  auto snapshot = two_gpu_snapshot();
  for (auto& gpu : snapshot.gpus) gpu.model = "H100";
  unsigned next = 0;
  for (auto& mig : snapshot.gpus[1].mig_devices) {
    mig.uuid = DeviceUuid("MIG-" + std::to_string(next++));
    mig.profile = "1g.10gb";
  }
  return snapshot;
}

std::string device_names(const HealthView& view) {
  std::string out;
  for (const auto& device : view.devices) out += describe_device(device) + "\n";
  return out;
}

TEST(HealthView, HasEveryDeviceInNodeOrder) {
  const HealthFeed feed({}, XidFilter("", ""), device_with_name());
  const auto view = build_health_view(feed.machine, feed.there, {feed.now, {}});
  EXPECT_EQ(device_names(view),
            "GPU 0 (GPU-0)\nGPU 1 (GPU-1)\nMIG 1:0 (MIG-0)\nMIG 1:1 (MIG-1)\nMIG 1:2 (MIG-2)\n");
  const auto* mig = view.find(make_scope("GPU-1", 2, 0));
  ASSERT_NE(mig, nullptr);
  EXPECT_EQ(mig->uuid.str(), "MIG-2");
  EXPECT_EQ(mig->model, "1g.10gb");
  EXPECT_EQ(mig->slot, "0000:11:00.0");
  EXPECT_TRUE(mig->unavailable_sources.empty());
  const auto* gpu = view.find(make_scope("GPU-0"));
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->model, "H100");
  ASSERT_FALSE(gpu->unavailable_sources.empty());
  EXPECT_EQ(gpu->unavailable_sources.front().source, Source::kProbe);
  EXPECT_EQ(view.find(make_scope("GPU-9")), nullptr);
}

TEST(HealthView, TheWorstPreflightIsTheLabel) {
  HealthView view;
  view.devices.resize(3);
  EXPECT_EQ(preflight_label(view), std::nullopt);
  std::string last;
  for (const char* worse : {"passed", "unknown", "waiting", "slow", "failed"}) {
    view.devices[1].preflight = worse;
    view.devices[2].preflight = last;
    EXPECT_EQ(preflight_label(view), worse);
    last = worse;
  }
}

TEST(HealthView, AGpuThatWaitsForItsPreflightIsNotOffered) {
  DeviceView device;
  EXPECT_TRUE(is_offered(device));
  EXPECT_EQ(waiting_text(device), "");
  device.preflight = "waiting";
  EXPECT_FALSE(is_offered(device));
  EXPECT_EQ(waiting_text(device), "waits for its preflight");
  device.preflight_detail = "for the driver";
  EXPECT_EQ(waiting_text(device), "waits for its preflight, for the driver");
  device.preflight = "failed";
  EXPECT_TRUE(is_offered(device)) << "its fault decides";
  device.status.state = DeviceState::kQuarantined;
  EXPECT_FALSE(is_offered(device));
}

TEST(HealthView, SaysWhichGpusAreInAFabric) {
  HealthFeed feed({}, XidFilter("", ""), device_with_name());
  const auto in_fabric = [&] {
    return build_health_view(feed.machine, feed.there, {feed.now, {}}).find(make_scope("GPU-0"))->in_fabric;
  };
  for (const auto& [state, is_in] : {std::pair(FabricState::kHealthy, true),
                                     {FabricState::kDegraded, true},
                                     {FabricState::kJoining, false},
                                     {FabricState::kFailed, false},
                                     {FabricState::kNone, false}}) {
    feed.machine.add_evidence({make_scope("GPU-0"), feed.now, FabricReading{state}});
    EXPECT_EQ(in_fabric(), is_in) << static_cast<int>(state);
  }
}

TEST(HealthView, CountsLinks) {
  HealthFeed feed({}, XidFilter("", ""), device_with_name());
  const auto links = [&] {
    return build_health_view(feed.machine, feed.there, {feed.now, {}}).find(make_scope("GPU-0"))->links;
  };
  EXPECT_EQ(links(), (LinkCounts{2, 2})) << "the feed's own readings";
  // The third is not connected.
  feed.machine.add_evidence(
      {make_scope("GPU-0"), feed.now, NvLinkReading{{{0, true, 0}, {1, true, 0}, {2, false, 0}}}});
  EXPECT_EQ(links(), (LinkCounts{2, 2}));
  feed.machine.add_evidence({make_scope("GPU-0"), feed.now, NvLinkReading{{{0, true, 0}, {1, false, 0}}}});
  EXPECT_EQ(links(), (LinkCounts{2, 1}));
}

TEST(HealthView, KeepsARemovedGpu) {
  HealthFeed feed({}, XidFilter("", ""), device_with_name());
  feed.there.gpus.erase(feed.there.gpus.begin());
  feed.machine.apply_snapshot(feed.there, feed.now);
  const auto view = build_health_view(feed.machine, feed.there, {feed.now, {}});
  ASSERT_EQ(view.devices.size(), 5u);
  EXPECT_EQ(describe_device(view.devices.back()), "GPU GPU-0");
  EXPECT_EQ(view.devices.back().status.state, DeviceState::kLost);
  EXPECT_EQ(view.devices.front().gpu_index, 1u);
}

}  // namespace

namespace {

inventory::Snapshot snapshot_of_one_gpu() {
  auto snapshot = two_gpu_snapshot();
  unsigned next = 0;
  for (auto& mig : snapshot.gpus[1].mig_devices) mig.uuid = DeviceUuid("MIG-" + std::to_string(next++));
  return snapshot;
}

class NodeConditionTest : public testing::Test {
 protected:
  HealthView view_now() const { return build_health_view(feed.machine, feed.there, {feed.now, {}}); }
  NodeHealthSummary summary_now() const { return summarize_node_health(view_now()); }
  HealthFeed feed{{}, XidFilter("", ""), snapshot_of_one_gpu()};
};

TEST_F(NodeConditionTest, AHealthyNodeIsTrue) {
  const auto all = summary_now();
  EXPECT_EQ(all.severity, Severity::kHealthy);
  EXPECT_EQ(all.healthy, true);
  EXPECT_EQ(all.reason, "GpusHealthy");
  EXPECT_EQ(all.message, "2 GPUs without a fault");
  EXPECT_EQ(summarize_node_health(HealthView{}).healthy, std::nullopt);
  EXPECT_EQ(summarize_node_health(HealthView{}).reason, "NoGpu");
}

TEST_F(NodeConditionTest, AFaultIsFalseWithReasonAndRecovery) {
  feed.add_xid(make_scope("GPU-0"), 79);
  const auto lost = summary_now();
  EXPECT_EQ(lost.severity, Severity::kLost);
  EXPECT_EQ(lost.healthy, false);
  EXPECT_EQ(lost.reason, "GpuLost");
  const auto comes_back = feed.machine.device_status(make_scope("GPU-0"))->recovery_text;
  ASSERT_FALSE(comes_back.empty());
  EXPECT_EQ(lost.message, "GPU 0 (GPU-0) is lost: " + feed.reason_of_device(make_scope("GPU-0")) +
                              "; recovers " + comes_back);
  // A repeated fault has the same text: it contains no count and no time.
  feed.pass_time(seconds(5));
  feed.add_xid(make_scope("GPU-0"), 79);
  EXPECT_EQ(summary_now().message, lost.message);
}

TEST_F(NodeConditionTest, WorstDeviceDecidesAndIsListedFirst) {
  feed.add_xid(make_scope("GPU-0"), 95);
  feed.add_xid(make_scope("GPU-1"), 79);
  const auto both = summary_now();
  EXPECT_EQ(both.severity, Severity::kLost);
  const auto lost = both.message.find("GPU 1 (GPU-1) is lost"), out = both.message.find("GPU 0 (GPU-0) is ");
  ASSERT_NE(lost, std::string::npos);
  ASSERT_NE(out, std::string::npos);
  EXPECT_LT(lost, out);
  // The MIG devices of a GPU that is lost say nothing of their own.
  EXPECT_EQ(both.message.find("MIG"), std::string::npos) << both.message;
}

TEST_F(NodeConditionTest, AMigDeviceIsListedAlone) {
  feed.add_xid(make_scope("GPU-1", 1), 95);
  const auto part = summary_now();
  EXPECT_EQ(part.severity, Severity::kWithdrawn);
  EXPECT_EQ(part.reason, "GpuWithdrawn");
  EXPECT_NE(part.message.find("MIG 1:0 (MIG-0) is quarantined"), std::string::npos) << part.message;
  EXPECT_NE(part.message.find("MIG 1:1 (MIG-1) is quarantined"), std::string::npos) << part.message;
  EXPECT_EQ(part.message.find("MIG-2"), std::string::npos) << part.message;
}

TEST_F(NodeConditionTest, ADegradedNodeIsTrue) {
  feed.feed(make_scope("GPU-0"), RowRemapReading{.pending = true});
  const auto flagged = summary_now();
  EXPECT_EQ(flagged.severity, Severity::kDegraded);
  EXPECT_EQ(flagged.healthy, true);
  EXPECT_NE(flagged.message.find("GPU 0 (GPU-0) is degraded"), std::string::npos);
}

TEST_F(NodeConditionTest, ACordonIsNoFault) {
  feed.feed(make_scope("GPU-0"), OperatorCommand{OperatorAction::kCordon, "for a look"});
  EXPECT_EQ(summary_now().severity, Severity::kCordoned);
  EXPECT_EQ(summary_now().healthy, true);
  feed.add_xid(make_scope("GPU-0"), 95);
  EXPECT_EQ(summary_now().severity, Severity::kWithdrawn);
  EXPECT_EQ(summary_now().healthy, false);
}

TEST_F(NodeConditionTest, AReleasedDriverIsUnknownButForEarlierFaults) {
  const HandleReading released{Reachability::kDriverAway, std::string(kDriverReleased) + ": driver upgrade"};
  for (const char* gpu : {"GPU-0", "GPU-1"}) feed.feed(make_scope(gpu), released);
  EXPECT_EQ(summary_now().healthy, false) << "a missing driver";
  auto view = view_now();
  EXPECT_FALSE(is_allocatable(view.devices[0].status.state));
  EXPECT_EQ(view.devices[0].status.reason, "cannot be read: the driver is released: driver upgrade");
  view.release = {"driver upgrade", true};
  auto summary = summarize_node_health(view);
  EXPECT_EQ(summary.severity, Severity::kUnmonitored);
  EXPECT_EQ(summary.healthy, std::nullopt);
  EXPECT_EQ(summary.reason, "DriverReleased");
  EXPECT_EQ(summary.message, "the driver is released: driver upgrade");
  view.devices.clear();
  EXPECT_EQ(summarize_node_health(view).reason, "DriverReleased");

  feed.add_xid(make_scope("GPU-0"), 95);
  view = view_now();
  view.release = {"driver upgrade", false};
  summary = summarize_node_health(view);
  EXPECT_EQ(summary.severity, Severity::kWithdrawn);
  EXPECT_EQ(summary.healthy, false);
  EXPECT_NE(summary.message.find("GPU 0 (GPU-0) is quarantined"), std::string::npos) << summary.message;
  EXPECT_EQ(summary.message.find("GPU 1"), std::string::npos) << summary.message;
}

TEST_F(NodeConditionTest, ALongListIsTruncated) {
  HealthView view;
  for (unsigned i = 0; i < kMaxListedDevices + 4; ++i) {
    DeviceView device;
    device.scope.gpu = device.uuid = DeviceUuid("GPU-" + std::to_string(i));
    device.gpu_index = i;
    device.status.state = DeviceState::kLost;
    view.devices.push_back(device);
  }
  const auto message = summarize_node_health(view).message;
  EXPECT_NE(message.find("GPU 15 (GPU-15) is lost. 4 more"), std::string::npos) << message;
}

TEST_F(NodeConditionTest, ARemovedMigDeviceIsFoundByItsGpu) {
  const auto all = view_now();
  EXPECT_EQ(find_device_or_gpu(all, make_scope("GPU-1", 2, 0))->uuid.str(), "MIG-2");
  EXPECT_EQ(find_device_or_gpu(all, make_scope("GPU-1", 7, 0))->uuid.str(), "GPU-1");
  EXPECT_EQ(find_device_or_gpu(all, make_scope("GPU-9")), nullptr);
}

TEST_F(NodeConditionTest, EverySeverityHasAName) {
  for (const auto severity : kSeverities) EXPECT_FALSE(enum_name(severity).empty());
  EXPECT_EQ(enum_name(Severity::kWithdrawn), "withdrawn");
}

}  // namespace
}  // namespace gpulet::health
