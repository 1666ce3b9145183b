#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "agent/health/operator_interface.h"
#include "agent/node/test_reporter.h"
#include "base/file.h"
#include "base/loop.h"
#include "health/report/health_report.h"
#include "health/state/state_machine.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

class HealthReportWriterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "health_report.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    path_ = directory_ + "/run/health.json";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  static health::HealthViewPtr view_with_state(const std::string& model) {
    health::HealthView view;
    view.at.wall = WallTime(1s);
    health::DeviceView device;
    device.uuid = device.scope.gpu = DeviceUuid("GPU-0");
    device.model = model;
    view.devices.push_back(device);
    return std::make_shared<const health::HealthView>(std::move(view));
  }
  std::string written_view() const {
    const auto report = health::read_report(path_);
    return report ? report->devices.at(0).model : "";
  }

  ManualLoop loop_;
  RecordingReporter reporter_;
  std::string directory_, path_;
};

// Whatever the umask, and in place of a file that everybody could read.
TEST_F(HealthReportWriterTest, IsReadableByItsOwnerAndGroupOnly) {
  const auto mode = [&] { return std::filesystem::status(path_).permissions(); };
  ASSERT_TRUE(write_file_atomic(path_, "{}", 0644));
  for (const mode_t mask : {0, 0022}) {
    const mode_t before = ::umask(mask);
    HealthReportWriter report(loop_, reporter_, path_, 1);
    report.update_report(view_with_state("a"));
    loop_.advance(0s);
    ::umask(before);
    EXPECT_EQ(written_view(), "a");
    EXPECT_EQ(static_cast<unsigned>(mode()), 0640u) << mask;
  }
}

TEST_F(HealthReportWriterTest, WritesImmediatelyAndInAStormOnlyTheNewest) {
  HealthReportWriter report(loop_, reporter_, path_, 1);
  report.update_report(view_with_state("a"));
  loop_.advance(0s);
  EXPECT_EQ(written_view(), "a");
  report.update_report(view_with_state("b"));
  report.update_report(view_with_state("c"));
  loop_.advance(kReportInterval / 2);
  EXPECT_EQ(written_view(), "a");
  loop_.advance(kReportInterval / 2);
  EXPECT_EQ(written_view(), "c");
  loop_.advance(1h);
  EXPECT_EQ(loop_.pending_timers(), 0u) << "nothing changes, nothing wakes it";
  report.update_report(view_with_state("d"));
  loop_.advance(0s);
  EXPECT_EQ(written_view(), "d");
}

TEST_F(HealthReportWriterTest, AFailedWriteIsReportedOnceAndRetried) {
  std::ofstream(directory_ + "/run").flush();  // a file in place of the directory
  HealthReportWriter report(loop_, reporter_, path_, 1);
  report.update_report(view_with_state("a"));
  loop_.advance(10min);
  report.update_report(view_with_state("b"));
  loop_.advance(10min);
  EXPECT_EQ(reporter_.reasons(), std::vector<std::string>{"HealthReportNotWritten"});
  std::filesystem::remove(directory_ + "/run");
  loop_.advance(kReportBackoff.max);
  EXPECT_EQ(written_view(), "b");
  EXPECT_EQ(reporter_.reasons().size(), 2u);
  EXPECT_EQ(reporter_.reasons().back(), "HealthReportWritten");
}

TEST_F(HealthReportWriterTest, WritesThePendingReportAtTheEnd) {
  {
    HealthReportWriter report(loop_, reporter_, path_, 1);
    report.update_report(view_with_state("a"));
    loop_.advance(0s);
    report.update_report(view_with_state("b"));
  }
  EXPECT_EQ(written_view(), "b");
}

TEST_F(HealthReportWriterTest, NoPathNoFile) {
  HealthReportWriter report(loop_, reporter_, "", 1);
  report.update_report(view_with_state("a"));
  loop_.advance(1h);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

}  // namespace

namespace {

using namespace std::chrono_literals;
using health::DeviceState;
using health::OperatorAction;
using health::Scope;

// Two GPUs, their machine in the agent's place, and the file.
class CordonWatcherTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "cordon_care.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    path_ = cordons_path(directory_ + "/state");
    for (unsigned i = 0; i < 2; ++i) {
      inventory::Gpu gpu;
      gpu.index = i;
      gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
      gpu.pci = {0, 0x10 + i, 0, 0};
      node_.gpus.push_back(gpu);
    }
    machine_.apply_snapshot(node_, loop_.now());
    reporter_.changed = [this] { wait_for_state(); };
  }
  void TearDown() override {
    watcher_.reset();
    std::filesystem::remove_all(directory_);
  }

  void start_watcher() {
    watcher_.emplace(loop_, reporter_, path_, [this](const health::Evidence& evidence) {
      ++taken_;
      machine_.add_evidence(evidence);
      machine_.advance_to(loop_.now());
      publish_view();
      wait_for_state();
    });
    publish_view();
  }
  void publish_view() {
    watcher_->on_health_view(std::make_shared<const health::HealthView>(
        build_health_view(machine_, node_, {loop_.now(), loop_.wall_now()})));
  }
  void write_cordon(const std::string& gpu, OperatorAction action, const std::string& reason = {}) {
    const auto status = health::update_cordons(path_, loop_.wall_now(), [&](health::Cordons& cordons) {
      cordons[DeviceUuid(gpu)] = {action, std::chrono::floor<std::chrono::milliseconds>(loop_.wall_now()),
                                  reason};
    });
    ASSERT_TRUE(status) << status.error().full_message();
  }
  DeviceState state_of_gpu(const std::string& gpu) const {
    return machine_.device_status({DeviceUuid(gpu)})->state;
  }

  // Runs the loop until it holds.
  bool comes(const std::function<bool()>& holds) {
    awaited_ = holds;
    const auto late = loop_.after(20s, [this] { loop_.stop_loop(); });
    loop_.post([this] { wait_for_state(); });
    loop_.run_loop();
    return holds();
  }
  void wait_for_state() {
    if (awaited_ && awaited_()) loop_.stop_loop();
  }

  EpollLoop loop_;
  std::string directory_, path_;
  RecordingReporter reporter_;
  inventory::Snapshot node_;
  health::HealthStateMachine machine_{{}, health::XidFilter("", "")};
  std::optional<CordonWatcher> watcher_;
  std::function<bool()> awaited_;
  std::size_t taken_ = 0;
};

TEST_F(CordonWatcherTest, FollowsTheFile) {
  start_watcher();
  write_cordon("GPU-1", OperatorAction::kCordon, "new riser");
  ASSERT_TRUE(comes([&] { return state_of_gpu("GPU-1") == DeviceState::kDraining; }));
  EXPECT_EQ(machine_.device_status({DeviceUuid("GPU-1")})->reason, "cordoned: new riser");
  EXPECT_TRUE(is_allocatable(state_of_gpu("GPU-0")));
  write_cordon("GPU-1", OperatorAction::kUncordon);
  ASSERT_TRUE(comes([&] { return is_allocatable(state_of_gpu("GPU-1")); }));
  EXPECT_EQ(taken_, 2u);
  EXPECT_TRUE(reporter_.reported_texts().empty());
}

TEST_F(CordonWatcherTest, AppliesEntriesFromBeforeItsStartAndTheGpus) {
  write_cordon("GPU-0", OperatorAction::kCordon);
  write_cordon("GPU-late", OperatorAction::kCordon);
  start_watcher();
  ASSERT_TRUE(comes([&] { return state_of_gpu("GPU-0") == DeviceState::kDraining; }));
  node_.gpus[1].uuid = DeviceUuid("GPU-late");
  machine_.apply_snapshot(node_, loop_.now());
  publish_view();
  EXPECT_TRUE(comes([&] { return state_of_gpu("GPU-late") == DeviceState::kDraining; }));
}

TEST_F(CordonWatcherTest, ADamagedFileIsReportedOnceAndChangesNothing) {
  write_cordon("GPU-0", OperatorAction::kCordon);
  start_watcher();
  ASSERT_TRUE(comes([&] { return state_of_gpu("GPU-0") == DeviceState::kDraining; }));
  ASSERT_TRUE(write_file_atomic(path_, "nonsense\n"));
  ASSERT_TRUE(comes([&] { return !reporter_.reported_texts().empty(); }));
  EXPECT_EQ(reporter_.reasons()[0], "CordonsUnreadable");
  EXPECT_EQ(
      reporter_.reported_texts()[0],
      "CordonsUnreadable: " + path_ + ": line 1 is not 'gpulet-cordons 1'; existing cordons stay in effect");
  ASSERT_TRUE(write_file_atomic(path_, "nonsense!\n"));
  publish_view();
  std::filesystem::remove(path_);
  ASSERT_TRUE(comes([&] { return is_allocatable(state_of_gpu("GPU-0")); }))
      << "without the file no cordon is left";
  EXPECT_EQ(reporter_.reported_texts().size(), 1u);
}

TEST_F(CordonWatcherTest, AnIneffectiveCommandIsNotRepeated) {
  health::Policy policy;
  policy.class_effects[health::FaultClass::kCordoned] = health::Effect::kIgnore;
  machine_.set_policy(policy);
  write_cordon("GPU-0", OperatorAction::kCordon);
  start_watcher();
  ASSERT_TRUE(comes([&] { return taken_ > 0; }));
  publish_view();
  // The turn after this one has settled what was published.
  bool settled = false;
  const auto later = loop_.after(1ms, [&] {
    settled = true;
    wait_for_state();
  });
  ASSERT_TRUE(comes([&] { return settled; }));
  EXPECT_EQ(taken_, 1u);
}

}  // namespace

namespace {

using namespace std::chrono_literals;

class OperatorInterfaceTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "operator_care.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    interface_.emplace(
        loop_, reporter_, [this](const health::Evidence& evidence) { taken_.push_back(evidence); }, 1);
  }
  void TearDown() override {
    interface_.reset();
    std::filesystem::remove_all(directory_);
  }
  static health::HealthViewPtr view() {
    health::HealthView view;
    health::DeviceView device;
    device.uuid = device.scope.gpu = DeviceUuid("GPU-0");
    view.devices.push_back(device);
    return std::make_shared<const health::HealthView>(std::move(view));
  }
  bool lives(const std::string& directory) const {
    return ProcessLock::is_locked(presence_path(directory)).value_or(false);
  }

  ManualLoop loop_;
  RecordingReporter reporter_;
  std::string directory_;
  std::vector<health::Evidence> taken_;
  std::optional<OperatorInterface> interface_;
};

TEST_F(OperatorInterfaceTest, FollowsTheConfiguredPaths) {
  const auto one = directory_ + "/one", two = directory_ + "/two";
  interface_->on_health_view(view());
  interface_->set_paths(one, one + "/health.json");
  loop_.advance(0s);
  EXPECT_TRUE(lives(one));
  EXPECT_TRUE(health::read_report(one + "/health.json")) << "what was known before is written";
  ASSERT_TRUE(health::update_cordons(cordons_path(two), {}, [](health::Cordons& cordons) {
    cordons[DeviceUuid("GPU-0")] = {health::OperatorAction::kCordon, {}, "why"};
  }));
  interface_->set_paths(two, two + "/health.json");
  loop_.advance(0s);
  EXPECT_FALSE(lives(one));
  EXPECT_TRUE(lives(two));
  EXPECT_TRUE(health::read_report(two + "/health.json"));
  ASSERT_EQ(taken_.size(), 1u);
  EXPECT_EQ(std::get<health::OperatorCommand>(taken_[0].body).reason, "why");
  interface_->set_paths("", "");
  interface_->on_health_view(view());
  loop_.advance(1min);
  EXPECT_FALSE(lives(two));
  EXPECT_EQ(taken_.size(), 1u);
  EXPECT_TRUE(reporter_.reasons().empty());
}

TEST_F(OperatorInterfaceTest, AnotherAgentIsReportedOnceAndReplaced) {
  auto other = ProcessLock::acquire_lock(presence_path(directory_));
  ASSERT_TRUE(other);
  interface_->set_paths(directory_, "");
  loop_.advance(5min);
  EXPECT_EQ(reporter_.reasons(), std::vector<std::string>{"AnotherAgent"});
  {
    const ProcessLock ended = std::move(*other);
  }
  EXPECT_FALSE(lives(directory_));
  loop_.advance(kPresenceBackoff.max);
  EXPECT_TRUE(lives(directory_));
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

TEST_F(OperatorInterfaceTest, AnUnusableDirectoryIsReportedOnce) {
  std::ofstream(directory_ + "/file").flush();
  interface_->set_paths(directory_ + "/file", "");
  loop_.advance(5min);
  EXPECT_EQ(std::ranges::count(reporter_.reasons(), "AgentLockFailed"), 1);
}

}  // namespace
}  // namespace gpulet::agent
