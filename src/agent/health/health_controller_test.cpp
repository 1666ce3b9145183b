#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "agent/health/health_controller.h"
#include "agent/health/test_health.h"

namespace gpulet::agent {
namespace {

using health::DeviceState;
using health::Scope;
using health::StatusChange;
using Severity = Reporter::Severity;

const DeviceUuid kWhole("GPU-a"), kCut("GPU-b");

health::HealthView make_view() {
  health::HealthView view;
  const auto add = [&](Scope scope, const char* uuid, std::optional<unsigned> gpu,
                       std::optional<unsigned> mig) {
    health::DeviceView device;
    device.scope = std::move(scope);
    device.uuid = DeviceUuid(uuid);
    device.gpu_index = gpu;
    device.mig_index = mig;
    view.devices.push_back(std::move(device));
  };
  add({kWhole}, "GPU-a", 0, std::nullopt);
  add({kCut}, "GPU-b", 1, std::nullopt);
  add({kCut, 3, 0}, "MIG-x", 1, 0);
  add({kCut, 4, 0}, "MIG-y", 1, 1);
  add({DeviceUuid("GPU-gone")}, "GPU-gone", std::nullopt, std::nullopt);
  return view;
}

StatusChange make_change(Scope device, DeviceState before, DeviceState after,
                         std::string reason = "XID 95: uncontained memory error") {
  StatusChange change;
  change.device = std::move(device);
  change.before.state = before;
  change.after.state = after;
  change.after.reason = std::move(reason);
  change.after.recovery_text = "once its checks have passed for 30 s";
  return change;
}

std::string event_texts(const std::vector<HealthEvent>& events) {
  std::string out;
  for (const auto& event : events) {
    out += (out.empty() ? "" : "\n") + std::string(event.severity == Severity::kWarning ? "! " : "  ") +
           std::string(event.reason) + (event.names_pods ? "+: " : ": ") + event.message;
  }
  return out;
}
std::string event_texts_of(DeviceState before, DeviceState after,
                           std::string reason = "XID 95: uncontained memory error") {
  return event_texts(health_events(make_view(), {make_change({kWhole}, before, after, std::move(reason))}));
}

TEST(HealthEvents, EachKindOfChange) {
  EXPECT_EQ(event_texts_of(DeviceState::kHealthy, DeviceState::kQuarantined),
            "! GPUUnhealthy+: GPU 0 (GPU-a) is withdrawn: XID 95: uncontained memory error");
  EXPECT_EQ(event_texts_of(DeviceState::kDegraded, DeviceState::kLost, "no longer in the node"),
            "! GPUUnhealthy+: GPU 0 (GPU-a) is withdrawn: no longer in the node");
  EXPECT_EQ(event_texts_of(DeviceState::kHealthy, DeviceState::kDraining, "cordoned: a fan"),
            "! GPUUnhealthy+: GPU 0 (GPU-a) is withdrawn: cordoned: a fan");
  EXPECT_EQ(event_texts_of(DeviceState::kQuarantined, DeviceState::kLost, "XID 79: off"),
            "! GPUHealthChanged: GPU 0 (GPU-a) is still withdrawn, lost: XID 79: off");
  EXPECT_EQ(event_texts_of(DeviceState::kQuarantined, DeviceState::kRecovering),
            "  GPURecovering: GPU 0 (GPU-a) is recovering from XID 95: uncontained memory error: returns to "
            "service once its checks have passed for 30 s");
  EXPECT_EQ(event_texts_of(DeviceState::kRecovering, DeviceState::kHealthy, ""),
            "  GPUHealthy: GPU 0 (GPU-a) is healthy again and allocatable");
  EXPECT_EQ(event_texts_of(DeviceState::kRecovering, DeviceState::kDegraded, "held back"),
            "! GPUDegraded: GPU 0 (GPU-a) is allocatable again, degraded: held back");
  EXPECT_EQ(event_texts_of(DeviceState::kHealthy, DeviceState::kDegraded, "held back"),
            "! GPUDegraded: GPU 0 (GPU-a) is degraded: held back");
  EXPECT_EQ(event_texts_of(DeviceState::kDegraded, DeviceState::kHealthy, ""),
            "  GPUHealthy: GPU 0 (GPU-a) is healthy again");
  EXPECT_EQ(event_texts_of(DeviceState::kHealthy, DeviceState::kUnmonitored, ""),
            "! GPUUnmonitored: GPU 0 (GPU-a) is allocatable, but no source would report a fault");
  EXPECT_EQ(event_texts_of(DeviceState::kUnmonitored, DeviceState::kHealthy, ""), "")
      << "its first source has spoken";
}

TEST(HealthEvents, OneEventForAGpuAndItsMigDevices) {
  const auto both = {make_change({kCut}, DeviceState::kHealthy, DeviceState::kLost),
                     make_change({kCut, 3, 0}, DeviceState::kHealthy, DeviceState::kLost),
                     make_change({kCut, 4, 0}, DeviceState::kQuarantined, DeviceState::kLost)};
  EXPECT_EQ(event_texts(health_events(make_view(), both)),
            "! GPUUnhealthy+: GPU 1 (GPU-b) is withdrawn: XID 95: uncontained memory error\n"
            "! GPUHealthChanged: MIG 1:1 (MIG-y) is still withdrawn, lost: XID 95: uncontained memory error");
  EXPECT_EQ(event_texts(health_events(
                make_view(), {make_change({kCut, 3, 0}, DeviceState::kHealthy, DeviceState::kQuarantined)})),
            "! GPUUnhealthy+: MIG 1:0 (MIG-x) is withdrawn: XID 95: uncontained memory error");
}

TEST(HealthEvents, NoneForRemovedOrUnknownDevices) {
  EXPECT_EQ(
      event_texts(health_events(
          make_view(), {make_change({DeviceUuid("GPU-gone")}, DeviceState::kHealthy, DeviceState::kLost),
                        make_change({DeviceUuid("GPU-never")}, DeviceState::kHealthy, DeviceState::kLost)})),
      "");
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using health::DeviceState;
using health::HandleReading;
using health::Reachability;
using health::Scope;
using health::XidReport;

const DeviceUuid kFirst("GPU-0"), kSecond("GPU-1");

class HealthControllerTest : public testing::Test {
 protected:
  void SetUp() override { loop_.advance(1h); }
  void start_controller(inventory::Snapshot there = FakeHealthDriver::snapshot_of_gpus(2, true)) {
    there_ = std::move(there);
    HealthControllerPorts ports{.loop = loop_,
                                .driver = driver_,
                                .store = &store_,
                                .on_changed =
                                    [this](const auto& view, const HealthChanges& changes) {
                                      ++notifications_;
                                      view_ = view;
                                      changes_.insert(changes_.end(), changes.begin(), changes.end());
                                    },
                                .request_snapshot = [this] { ++rereads_; }};
    controller_.emplace(std::move(ports), config_);
    controller_->on_new_snapshot(there_);
    loop_.advance(1s);
  }
  void add_xid(const Scope& scope, std::uint64_t code) {
    controller_->add_evidence({scope, loop_.now(), XidReport{.code = code}});
  }
  DeviceState state_of_device(const Scope& scope) const {
    return controller_->health_view()->find(scope)->status.state;
  }
  bool is_allocatable_now(const DeviceUuid& gpu) const {
    return controller_->annotate_snapshot(there_).find(gpu)->health.healthy;
  }
  bool unavailable_reason(const DeviceUuid& gpu, health::Source source) const {
    const auto& absences = controller_->health_view()->find({gpu})->unavailable_sources;
    return std::ranges::count(absences, source, &health::UnavailableSource::source) != 0;
  }

  ManualLoop loop_;
  FakeHealthDriver driver_{loop_};
  FakeHealthStore store_{loop_};
  config::Config config_;
  inventory::Snapshot there_;
  std::size_t notifications_ = 0, rereads_ = 0;
  health::HealthViewPtr view_;
  HealthChanges changes_;
  std::optional<HealthController> controller_;
};

TEST_F(HealthControllerTest, PublishesTheFirstReadingThenChanges) {
  HealthControllerPorts ports{
      .loop = loop_, .driver = driver_, .store = nullptr, .on_changed = nullptr, .request_snapshot = nullptr};
  EXPECT_EQ(HealthController(std::move(ports), config_).health_view(), nullptr);
  start_controller();
  EXPECT_GE(notifications_, 1u);
  EXPECT_EQ(state_of_device({kFirst}), DeviceState::kHealthy) << "its sources have spoken";
  EXPECT_TRUE(unavailable_reason(kFirst, health::Source::kFabric));
  EXPECT_TRUE(unavailable_reason(kFirst, health::Source::kProbe));
  const auto before = notifications_;
  EXPECT_FALSE(controller_->on_new_snapshot(there_));
  loop_.advance(5min);
  EXPECT_EQ(notifications_, before) << "an idle node tells nothing";
}

TEST_F(HealthControllerTest, ExcludedGpusArePublishedAndAreNoChangeOfHealth) {
  start_controller();
  const auto before = notifications_;
  changes_.clear();
  const std::string excluded = "is excluded by the rule at x.yaml:3:5";
  there_.gpus[1].excluded = excluded;
  controller_->on_excluded_marked(there_);
  controller_->on_excluded_marked(there_);
  EXPECT_EQ(notifications_, before + 1);
  EXPECT_EQ(view_->find({kSecond})->excluded, excluded);
  EXPECT_EQ(view_->find({kFirst})->excluded, "");
  EXPECT_EQ(state_of_device({kSecond}), DeviceState::kHealthy);
  EXPECT_FALSE(controller_->on_new_snapshot(there_));
  EXPECT_EQ(notifications_, before + 1);
  there_.gpus[1].excluded.clear();
  EXPECT_FALSE(controller_->on_new_snapshot(there_));
  EXPECT_EQ(notifications_, before + 2);
  EXPECT_EQ(view_->find({kSecond})->excluded, "");
  EXPECT_TRUE(changes_.empty());
}

TEST_F(HealthControllerTest, AnXidIsPublishedInItsRoundWithoutTheDriver) {
  start_controller();
  changes_.clear();
  const auto polled = driver_.polled;
  add_xid({kFirst}, 95);
  ASSERT_EQ(changes_.size(), 1u);
  EXPECT_EQ(changes_[0].device, Scope{kFirst});
  EXPECT_EQ(view_, controller_->health_view());
  EXPECT_FALSE(is_allocatable_now(kFirst));
  EXPECT_TRUE(is_allocatable_now(kSecond));
  EXPECT_EQ(driver_.polled, polled);
}

TEST_F(HealthControllerTest, AStormOfRepeatedXidsPublishesNothing) {
  start_controller();
  add_xid({kFirst}, 95);
  const auto told = notifications_, writes = store_.writes;
  for (int i = 0; i < 10'000; ++i) {
    loop_.advance(100us);
    add_xid({kFirst}, 95);
  }
  EXPECT_EQ(notifications_, told);
  EXPECT_LE(store_.writes, writes + 1);
  EXPECT_LE((driver_.polled[{kFirst}]), 4u) << "a second of it";
}

TEST_F(HealthControllerTest, AGpuReturnsOnlyAfterRecoveryActionAndChecks) {
  start_controller();
  driver_.action[kFirst] = 1;
  add_xid({kFirst}, 95);
  loop_.advance(5min);
  EXPECT_FALSE(is_allocatable_now(kFirst)) << "time alone heals nothing";
  driver_.action[kFirst] = 0;
  loop_.advance(30s);
  EXPECT_FALSE(is_allocatable_now(kFirst));
  EXPECT_EQ(state_of_device({kFirst}), DeviceState::kRecovering);
  loop_.advance(2s);
  EXPECT_TRUE(is_allocatable_now(kFirst));
  EXPECT_EQ(state_of_device({kFirst}), DeviceState::kHealthy);
}

// The kubelet gets no change, but `gpulet health` shows it.
TEST_F(HealthControllerTest, ACordonOfAWithdrawnGpuIsPublished) {
  start_controller();
  driver_.action[kFirst] = 1;
  add_xid({kFirst}, 95);
  const auto faults = view_->find({kFirst})->status.faults.size();
  controller_->add_evidence(
      {{kFirst}, loop_.now(), health::OperatorCommand{health::OperatorAction::kCordon, "riser"}});
  EXPECT_EQ(view_->find({kFirst})->status.faults.size(), faults + 1);
  EXPECT_EQ(state_of_device({kFirst}), DeviceState::kQuarantined);
}

TEST_F(HealthControllerTest, TheRecoveryTimeIsPublished) {
  start_controller();
  driver_.action[kFirst] = 1;
  add_xid({kFirst}, 95);
  EXPECT_FALSE(view_->find({kFirst})->status.due);
  driver_.action[kFirst] = 0;
  loop_.advance(10s);
  EXPECT_TRUE(view_->find({kFirst})->status.due);
}

TEST_F(HealthControllerTest, AMigDevicesFaultAffectsOnlyIt) {
  start_controller();
  add_xid({kSecond, 1, 0}, 95);
  EXPECT_EQ(state_of_device({kSecond, 1, 0}), DeviceState::kQuarantined);
  EXPECT_EQ(state_of_device({kSecond, 2, 0}), DeviceState::kHealthy);
  EXPECT_EQ(state_of_device({kSecond}), DeviceState::kHealthy);
  loop_.advance(3s);
  EXPECT_GE((driver_.polled[{kSecond, 2, 0}]), 2u) << "who runs on it is asked of each";
}

TEST_F(HealthControllerTest, AContradictionToTheSnapshotRequestsANewOne) {
  start_controller();
  driver_.handle[kFirst] = HandleReading{Reachability::kLost, "GPU is lost"};
  loop_.advance(10s);
  EXPECT_FALSE(is_allocatable_now(kFirst));
  EXPECT_EQ(rereads_, 1u);
  there_.gpus[0].unreadable = Error(Code::kDeviceLost, "GPU is lost");
  controller_->on_new_snapshot(there_);
  loop_.advance(5min);
  EXPECT_EQ(rereads_, 1u) << "that is known";
  driver_.handle.clear();
  loop_.advance(1s);
  EXPECT_EQ(rereads_, 2u);
  there_.gpus[0].unreadable.reset();
  controller_->on_new_snapshot(there_);
  loop_.advance(35s);
  EXPECT_TRUE(is_allocatable_now(kFirst));
  EXPECT_EQ(rereads_, 2u);
}

TEST_F(HealthControllerTest, AHangingGpuDelaysNoOther) {
  start_controller();
  driver_.action[kFirst] = driver_.action[kSecond] = 1;
  driver_.hangs[kFirst] = true;
  add_xid({kFirst}, 95);
  add_xid({kSecond}, 95);
  loop_.advance(3s);
  driver_.action[kSecond] = 0;
  loop_.advance(32s);
  EXPECT_TRUE(is_allocatable_now(kSecond));
  EXPECT_FALSE(is_allocatable_now(kFirst));
  EXPECT_EQ(driver_.most_out, 1u);
}

TEST_F(HealthControllerTest, RecoveryEventIsPolledImmediately) {
  start_controller();
  driver_.action[kFirst] = 2;
  controller_->add_evidence({{kFirst}, loop_.now(), health::DriverNotice{health::Notice::kRecoveryChanged}});
  loop_.advance(1ms);
  EXPECT_FALSE(is_allocatable_now(kFirst));
}

TEST_F(HealthControllerTest, OperatorCommandsAndResetsAreEvidence) {
  start_controller();
  controller_->add_evidence(
      {{kFirst}, loop_.now(), health::OperatorCommand{health::OperatorAction::kCordon, "a fan"}});
  EXPECT_FALSE(is_allocatable_now(kFirst));
  EXPECT_EQ(controller_->health_view()->find({kFirst})->status.reason, "cordoned: a fan");
  loop_.advance(1s);
  controller_->add_evidence(
      {{kFirst}, loop_.now(), health::OperatorCommand{health::OperatorAction::kUncordon, ""}});
  loop_.advance(2s);
  EXPECT_TRUE(is_allocatable_now(kFirst));
}

TEST_F(HealthControllerTest, TheKernelLogIsEvidenceOrUnavailable) {
  start_controller();
  controller_->set_kernel_log_source("permission denied");
  EXPECT_TRUE(unavailable_reason(kFirst, health::Source::kKernelLog));
  controller_->set_kernel_log_source(std::nullopt);
  EXPECT_FALSE(unavailable_reason(kFirst, health::Source::kKernelLog));
  controller_->add_evidence(health::FaultLine(health::FallenOffLine{{0, 0x10, 0, 0}}));
  EXPECT_EQ(state_of_device({kFirst}), DeviceState::kLost);
  controller_->add_evidence(health::FaultLine(health::FallenOffLine{{0, 0x99, 0, 0}}));
  EXPECT_TRUE(is_allocatable_now(kSecond));
}

TEST_F(HealthControllerTest, WithheldEventsOfMigInstancesAreASourceOfThoseGpus) {
  start_controller();
  const auto register_events = [&](const DeviceUuid& gpu, std::optional<std::string> absent) {
    controller_->add_evidence(
        {{gpu}, loop_.now(), health::SourceNotice{health::Source::kDriverEvents, std::move(absent)}});
  };
  const auto reason = [&](const DeviceUuid& gpu) {
    return unavailable_reason(gpu, health::Source::kDriverEvents);
  };
  const auto set_mig = [&](const DeviceUuid& gpu, bool enabled) {
    std::ranges::find(there_.gpus, gpu, &inventory::Gpu::uuid)->mig_enabled = enabled;
  };
  loop_.advance(1s);  // a poll
  set_mig(kSecond, false);
  controller_->on_new_snapshot(there_);
  controller_->set_mig_event_source("of MIG instances: no right");
  EXPECT_FALSE(reason(kFirst)) << "no GPU is in MIG mode";
  set_mig(kFirst, true);
  controller_->on_new_snapshot(there_);
  EXPECT_TRUE(reason(kFirst));
  EXPECT_FALSE(reason(kSecond));
  register_events(kFirst, std::nullopt);
  register_events(kSecond, std::nullopt);
  EXPECT_TRUE(reason(kFirst)) << "those of the whole GPU are not all";
  EXPECT_FALSE(reason(kSecond));
  set_mig(kFirst, false);
  controller_->on_new_snapshot(there_);
  EXPECT_FALSE(reason(kFirst));
  register_events(kSecond, "this GPU has no events");
  set_mig(kSecond, true);
  controller_->on_new_snapshot(there_);
  controller_->set_mig_event_source(std::nullopt);
  EXPECT_TRUE(reason(kSecond)) << "the driver's own reason stays";
}

TEST_F(HealthControllerTest, PreflightsAreSourcesAndResults) {
  start_controller(FakeHealthDriver::snapshot_of_gpus(2));
  const auto absent = [this](const DeviceUuid& gpu) -> std::string {
    for (const auto& one : controller_->health_view()->find({gpu})->unavailable_sources) {
      if (one.source == health::Source::kProbe) return one.reason;
    }
    return "";
  };
  EXPECT_EQ(absent(kFirst), "gpulet.preflight is not enabled");
  const Preflights held{.absent = std::nullopt, .gpus = {{kFirst, {"held", "unknown", "held by a Pod"}}}};
  controller_->set_preflights(held);
  EXPECT_EQ(absent(kFirst), "held");
  EXPECT_EQ(absent(kSecond), "");
  const auto* device = controller_->health_view()->find({kFirst});
  EXPECT_EQ(device->preflight, "unknown");
  EXPECT_EQ(device->preflight_detail, "held by a Pod");
  EXPECT_EQ(controller_->health_view()->find({kSecond})->preflight, "");
  const auto view = controller_->health_view();
  controller_->set_preflights(held);
  EXPECT_EQ(controller_->health_view(), view) << "nothing has changed";
  controller_->set_preflights({});
  EXPECT_EQ(controller_->health_view()->find({kFirst})->preflight, "");
}

TEST_F(HealthControllerTest, ALaterGpuHasTheSourcesToo) {
  start_controller(FakeHealthDriver::snapshot_of_gpus(1));
  controller_->set_kernel_log_source("permission denied");
  there_ = FakeHealthDriver::snapshot_of_gpus(2);
  controller_->on_new_snapshot(there_);
  loop_.advance(1s);
  EXPECT_TRUE(unavailable_reason(kSecond, health::Source::kKernelLog));
  EXPECT_TRUE(unavailable_reason(kSecond, health::Source::kProbe));
  EXPECT_EQ(driver_.polled.count({kSecond}), 1u);
}

TEST_F(HealthControllerTest, WithoutADriverNothingIsPolledOrForgotten) {
  start_controller();
  driver_.action[kSecond] = 1;
  add_xid({kSecond}, 95);
  for (auto& gpu : there_.gpus) gpu.unreadable = Error(Code::kUnavailable, "the driver has gone");
  controller_->on_new_snapshot(there_);
  controller_->on_driver_unavailable();
  loop_.advance(1ms);
  const auto polled = driver_.polled;
  loop_.advance(1h);
  EXPECT_EQ(driver_.polled, polled);
  EXPECT_FALSE(is_allocatable_now(kFirst));
  for (auto& gpu : there_.gpus) gpu.unreadable.reset();
  controller_->on_new_snapshot(there_);
  loop_.advance(2s);
  EXPECT_TRUE(is_allocatable_now(kFirst)) << "a driver that was away says nothing of the GPU";
  EXPECT_FALSE(is_allocatable_now(kSecond));
}

TEST_F(HealthControllerTest, NewConfigAppliesImmediately) {
  start_controller();
  config_.gpulet.health.recovery_hold = 0s;
  config_.flags.disable_healthchecks = "95";
  controller_->apply_health_config(config_);
  add_xid({kFirst}, 95);
  EXPECT_TRUE(is_allocatable_now(kFirst));
  add_xid({kFirst}, 62);
  EXPECT_FALSE(is_allocatable_now(kFirst));
  loop_.advance(4s);
  EXPECT_TRUE(is_allocatable_now(kFirst));
}

TEST_F(HealthControllerTest, WithChecksDisabledALostGpuIsStillWithdrawn) {
  config_.flags.disable_healthchecks = "all";
  start_controller();
  EXPECT_EQ(state_of_device({kFirst}), DeviceState::kUnmonitored);
  add_xid({kFirst}, 95);
  EXPECT_TRUE(is_allocatable_now(kFirst));
  driver_.handle[kFirst] = HandleReading{Reachability::kLost, "GPU is lost"};
  loop_.advance(10s);
  EXPECT_FALSE(is_allocatable_now(kFirst));
  EXPECT_TRUE(driver_.polled.empty());
}

TEST_F(HealthControllerTest, FaultsSurviveTheProcess) {
  start_controller();
  driver_.action[kFirst] = 1;
  add_xid({kFirst}, 95);
  controller_.reset();
  changes_.clear();
  start_controller();
  EXPECT_FALSE(is_allocatable_now(kFirst));
  EXPECT_TRUE(is_allocatable_now(kSecond));
  ASSERT_FALSE(changes_.empty());
  EXPECT_EQ(changes_[0].device, Scope{kFirst});
}

// Events are applied before the reading that they belong to is reported.
TEST_F(HealthControllerTest, EvidenceBeforeTheFirstReadingIsPublishedWithIt) {
  HealthControllerPorts ports{
      .loop = loop_,
      .driver = driver_,
      .store = nullptr,
      .on_changed = [this](const auto&, const HealthChanges& changes) { changes_ = changes; },
      .request_snapshot = [] {}};
  controller_.emplace(std::move(ports), config_);
  add_xid({kFirst}, 95);
  controller_->add_evidence(
      {{kFirst}, loop_.now(), health::SourceNotice{health::Source::kDriverEvents, std::nullopt}});
  EXPECT_TRUE(changes_.empty());
  controller_->on_new_snapshot(FakeHealthDriver::snapshot_of_gpus(2));
  ASSERT_EQ(changes_.size(), 1u);
  EXPECT_EQ(changes_[0].after.state, DeviceState::kQuarantined);
}

TEST_F(HealthControllerTest, AnUnreadableStateFileIsIgnored) {
  store_.failure = Error(Code::kInvalidArgument, "line 3 is no GPU");
  start_controller();
  EXPECT_TRUE(is_allocatable_now(kFirst));
}

}  // namespace
}  // namespace gpulet::agent
