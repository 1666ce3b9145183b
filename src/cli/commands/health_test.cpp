#include "cli/commands/health.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "agent/health/operator_interface.h"
#include "base/file.h"
#include "base/process.h"
#include "health/report/health_report.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;
using health::DeviceState;

// 2025-11-21 08:00:00 UTC
constexpr WallTime kAt{std::chrono::seconds(1'763'712'000)};

health::DeviceView device(unsigned index, const std::string& uuid,
                          DeviceState state = DeviceState::kHealthy) {
  health::DeviceView device;
  device.uuid = device.scope.gpu = DeviceUuid(uuid);
  device.gpu_index = index;
  device.model = "H100";
  device.slot = "0000:1b:00.0";
  device.status.state = state;
  device.status.since = Time(1h) - 4min;
  return device;
}

// GPU 0 well; GPU 1 after XID 95, with a cordoned MIG device; GPU 2 gone.
health::HealthView broken_node() {
  health::HealthView view;
  view.at = {Time(1h), kAt};
  auto broken = device(1, "GPU-bb", DeviceState::kQuarantined);
  health::Fault fault;
  fault.fault_class = health::FaultClass::kXidReset;
  fault.code = 95;
  fault.scope = broken.scope;
  fault.effect = health::Effect::kQuarantine;
  fault.opened = Time(1h) - 4min;
  fault.last_seen = Time(1h) - 3min;
  fault.count = 7;
  broken.status.faults = {fault};
  broken.status.reason = fault.fault_text();
  broken.status.recovery_text = "after a reset of the GPU";
  broken.status.relapses = 2;
  broken.unavailable_sources = {{health::Source::kProbe, "no program for it"}};

  auto mig = device(1, "GPU-bb", DeviceState::kQuarantined);
  mig.uuid = DeviceUuid("MIG-cc");
  mig.mig_index = 0;
  mig.model = "1g.10gb";
  mig.scope.gpu_instance = 2;
  mig.scope.compute_instance = 0;
  mig.status = broken.status;
  mig.status.relapses = 0;
  health::Fault cordon;
  cordon.fault_class = health::FaultClass::kCordoned;
  cordon.scope = mig.scope;
  cordon.effect = health::Effect::kDrain;
  cordon.opened = cordon.last_seen = Time(1h) - 1min;
  cordon.count = 1;
  cordon.detail = "new \x1b[2J riser";
  cordon.condition_met_at = Time(1h);
  mig.status.faults.push_back(cordon);
  mig.status.due = Time(1h) + 30s;

  auto gone = device(0, "GPU-gone", DeviceState::kLost);
  gone.gpu_index.reset();
  gone.model.clear();
  gone.slot.clear();
  view.devices = {device(0, "GPU-aa"), broken, mig, gone};
  return view;
}

TEST(HealthReport, TableHasEveryDeviceAndTheNextStep) {
  EXPECT_EQ(health_table(broken_node()),
            R"(GPU    MODEL        UUID      STATE        REASON
0      H100         GPU-aa    healthy
1      H100         GPU-bb    quarantined  XID 95: uncontained memory error
  1:0  MIG 1g.10gb  MIG-cc    quarantined  XID 95: uncontained memory error
-      -            GPU-gone  lost

GPU 1 (GPU-bb): End all workloads on it, then reset it: )" +
                health::reset_command("1") + "\n");
  EXPECT_EQ(health_table({}), "no GPU on this node\n");
}

TEST(HealthReport, APendingMigModeIsShown) {
  health::HealthView view = broken_node();
  view.devices = {device(0, "GPU-aa")};
  view.devices[0].mig_pending = true;
  EXPECT_EQ(health_table(view, {.wide = true}),
            R"(GPU  MODEL  UUID    STATE    SINCE (UTC)          REASON
0    H100   GPU-aa  healthy  2025-11-21 07:56:00  MIG needs-reset: on
)");
  EXPECT_EQ(health_table(view, {.headers = false}), "0  H100  GPU-aa  healthy  MIG needs-reset: on\n");
  EXPECT_NE(health_details(view, view.devices[0], kAt + 5s).find("  mode   MIG needs-reset: on\n"),
            std::string::npos);
}

TEST(HealthReport, DetailsHaveStateEvidenceAndTheNextStep) {
  const auto view = broken_node();
  EXPECT_EQ(health_details(view, view.devices[1], kAt + 5s, {.wide = true}),
            R"(GPU 1 (GPU-bb): quarantined, out of service
  model     H100
  slot      0000:1b:00.0
  since     2025-11-21 07:56:00 UTC (4 min ago)
  reason    XID 95: uncontained memory error
  returns   after a reset of the GPU
  relapses  2
  next      End all workloads on it, then reset it: )" +
                health::reset_command("1") + R"(

FAULT      SCOPE    EFFECT      FIRST SEEN (UTC)     LAST SEEN (UTC)      COUNT  DETAIL
xid-reset  the GPU  quarantine  2025-11-21 07:56:00  2025-11-21 07:57:00  7      XID 95: uncontained memory error

UNAVAILABLE SOURCE  REASON
gpu-program         no program for it

GPU    MODEL        UUID    STATE        SINCE (UTC)          REASON
  1:0  MIG 1g.10gb  MIG-cc  quarantined  2025-11-21 07:56:00  XID 95: uncontained memory error
)");
  const auto mig = health_details(view, view.devices[2], std::nullopt, {.wide = true});
  EXPECT_NE(mig.find("not before  2025-11-21 08:00:30 UTC\n"), std::string::npos) << mig;
  EXPECT_NE(mig.find("instance 2/0"), std::string::npos) << mig;
  EXPECT_NE(mig.find("since 2025-11-21 08:00:00"), std::string::npos) << mig;
  EXPECT_EQ(mig.find(" ago)"), std::string::npos) << "no age that stays when time goes on";
}

TEST(HealthReport, DetailsHaveThePreflight) {
  auto view = broken_node();
  EXPECT_EQ(health_details(view, view.devices[0], kAt).find("preflight"), std::string::npos);
  view.devices[0].preflight = "passed";
  EXPECT_NE(health_details(view, view.devices[0], kAt).find("  preflight  passed\n"), std::string::npos);
  view.devices[0].preflight = "unknown";
  view.devices[0].preflight_detail = "held by Pod a/b\x1b[2J";
  view = replace_control_characters(view);
  EXPECT_NE(health_details(view, view.devices[0], kAt).find("  preflight  unknown: held by Pod a/b?[2J\n"),
            std::string::npos);
}

TEST(HealthReport, ControlCharactersAreReplaced) {
  auto view = broken_node();
  view.devices[0].model =
      "a\xC2\x9B"
      "2Jb\x7F\nc\xC3\xA4";
  const auto clean = replace_control_characters(view);
  EXPECT_EQ(clean.devices[0].model, "a?2Jb??c\xC3\xA4");
  const auto text = health_details(clean, clean.devices[2], kAt);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("new ?[2J riser"), std::string::npos) << text;
}

class HealthCommand : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "health_command.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    options_.health_file = directory_ + "/run/health.json";
    options_.state_dir = directory_ + "/state";
  }
  void TearDown() override {
    agent_.reset();
    std::filesystem::remove_all(directory_);
  }
  void write_report(const health::HealthView& view) {
    ASSERT_TRUE(write_file_atomic(options_.health_file, health::format_report(view)));
  }
  void hold_agent_lock() {
    auto held = ProcessLock::acquire_lock(agent::presence_path(options_.state_dir));
    ASSERT_TRUE(held) << held.error().full_message();
    agent_.emplace(std::move(*held));
  }
  CommandOutput run_health_command(const std::string& device = {}, const std::string& output = "table") {
    options_.device = device;
    options_.output = output;
    return health_output(options_, kAt + 5s);
  }

  std::string directory_;
  HealthOptions options_;
  std::optional<ProcessLock> agent_;
};

TEST_F(HealthCommand, ExitCodeShowsWhetherPrintedDevicesAreInService) {
  write_report(broken_node());
  hold_agent_lock();
  EXPECT_EQ(run_health_command().exit_code, 3);
  EXPECT_EQ(run_health_command().err, "");
  EXPECT_EQ(run_health_command("0").exit_code, 0);
  EXPECT_EQ(run_health_command("GPU-bb").exit_code, 3);
  EXPECT_EQ(run_health_command("1:0").out.substr(0, 17), "MIG 1:0 (MIG-cc):");
  const auto none = run_health_command("7");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_EQ(none.out, "");
  EXPECT_EQ(none.err.substr(0, 62), "gpulet health: there is no device '7' on this node; there are ");
  options_.watch = true;
  EXPECT_EQ(run_health_command("0").out.find(" ago)"), std::string::npos);
}

TEST_F(HealthCommand, AReleasedDriverNeedsAction) {
  health::HealthView view;
  view.at = {Time(1h), kAt};
  view.release = {"driver\x1b upgrade", true};
  write_report(view);
  hold_agent_lock();
  const auto started_released = run_health_command();
  EXPECT_EQ(started_released.exit_code, 3);
  EXPECT_EQ(started_released.out, "the driver is released: driver? upgrade\n");
  view.devices = {device(0, "GPU-aa")};
  write_report(view);
  EXPECT_TRUE(run_health_command().out.ends_with("\n\nthe driver is released: driver? upgrade\n"))
      << run_health_command().out;
}

TEST_F(HealthCommand, JsonIsTheReportOrPartOfIt) {
  write_report(broken_node());
  hold_agent_lock();
  EXPECT_EQ(run_health_command("", "json").out, health::format_report(broken_node()));
  const auto part = nlohmann::json::parse(run_health_command("1", "json").out);
  ASSERT_EQ(part["devices"].size(), 2u) << "the GPU and its MIG device";
  EXPECT_EQ(part["devices"][1]["uuid"], "MIG-cc");
  EXPECT_EQ(nlohmann::json::parse(run_health_command("1:0", "json").out)["devices"].size(), 1u);
}

TEST_F(HealthCommand, ReportsThatNoAgentIsRunning) {
  write_report(broken_node());
  const auto answer = run_health_command("0");
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_NE(answer.out, "") << "what is known is shown";
  EXPECT_EQ(answer.err, "gpulet health: no agent is running on this node (nothing locks " +
                            options_.state_dir +
                            "/agent.lock); the report is from 2025-11-21T08:00:00.000Z\n");
  options_.state_dir.clear();
  EXPECT_EQ(run_health_command("0").exit_code, 0) << "where nothing is kept, that is not asked";
}

TEST_F(HealthCommand, PrintsOneLineForAnUnreadableReport) {
  hold_agent_lock();
  auto answer = run_health_command();
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.err,
            "gpulet health: " + options_.health_file +
                " does not exist: no agent has run on this node since boot, or it writes elsewhere "
                "(--health-file)\n");
  ASSERT_TRUE(write_file_atomic(options_.health_file, "{"));
  answer = run_health_command();
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_EQ(answer.err,
            "gpulet health: " + options_.health_file + ": is not valid JSON: truncated or damaged\n");
}

TEST_F(HealthCommand, WatchPrintsEachDifferenceOnce) {
  write_report(broken_node());
  hold_agent_lock();
  EpollLoop loop;
  std::vector<CommandOutput> shown;
  options_.device = "0";
  const auto watch = HealthWatcher::start_watcher(loop, options_, [&](const CommandOutput& answer) {
    shown.push_back(answer);
    loop.stop_loop();
  });
  ASSERT_TRUE(watch) << watch.error().full_message();
  // Waits for one more; false if none arrives.
  const auto next = [&] {
    const auto before = shown.size();
    const auto late = loop.after(20s, [&] { loop.stop_loop(); });
    while (shown.size() == before) {
      loop.run_loop();
      if (shown.size() == before) return false;
    }
    return true;
  };
  ASSERT_TRUE(next());
  EXPECT_EQ(shown.back().exit_code, 0);
  write_report(broken_node());  // the same again is nothing new
  auto view = broken_node();
  view.devices[0].status.state = DeviceState::kDegraded;
  view.devices[0].status.reason = "many PCIe replays";
  write_report(view);
  ASSERT_TRUE(next());
  EXPECT_EQ(shown.size(), 2u);
  EXPECT_NE(shown.back().out.find("degraded"), std::string::npos) << shown.back().out;
  agent_.reset();
  ASSERT_TRUE(next()) << "the agent's end is seen without anything being written";
  EXPECT_NE(shown.back().err.find("no agent is running"), std::string::npos);
  hold_agent_lock();
  write_report(broken_node());
  ASSERT_TRUE(next());
  EXPECT_EQ(shown.back().err, "");
  EXPECT_EQ(shown.back().out, shown.front().out);
  std::filesystem::remove(options_.health_file);
  ASSERT_TRUE(next());
  EXPECT_EQ(shown.back().exit_code, 1);
}

}  // namespace
}  // namespace gpulet::cli
