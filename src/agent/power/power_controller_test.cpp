#include "agent/power/power_controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <utility>

#include "agent/power/power_restore.h"
#include "base/file.h"
#include "base/test_loop.h"
#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"

namespace gpulet::agent {
namespace {

using config::ClockRange;
using config::PowerLimit;
using partition::PowerTarget;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class EventList final : public Reporter {
 public:
  void report_event(Severity, std::string_view reason, const std::string& message) override {
    EXPECT_EQ(reason, kPowerReason);
    events.push_back(message);
  }
  std::vector<std::string> events;
};

constexpr Duration kCallTimeout = std::chrono::seconds(10);

PowerTarget limit_target(unsigned watts) { return {.values = {.limit = PowerLimit{watts, 0}}}; }

// Agents one after the other, on the simulated driver.
class PowerControllerTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(state_dir());
    start_agent();
  }
  void TearDown() override { kill_agent(); }

  void start_agent() {
    thread_.run_on_loop([&] {
      driver_ =
          std::make_unique<NvmlDriver>(thread_.loop(), NvmlDriverOptions{.driver_root = root_.sim_root()});
    });
    read_driver();
    thread_.run_on_loop([&] {
      controller_ = std::make_unique<PowerController>(make_power_ports(
          reporter_, [this] { return driver_.get(); }, thread_.loop(), [] { return kCallTimeout; }));
      controller_->set_state_dir(state_dir());
    });
  }
  void kill_agent() {
    thread_.run_on_loop([&] {
      controller_.reset();
      driver_.reset();
    });
  }
  void read_driver() {
    const auto opened = thread_.await<Status>([&](auto done) { driver_->open_driver(done); });
    ASSERT_TRUE(opened && *opened);
    read_snapshot();
  }
  void read_snapshot() {
    const auto read =
        thread_.await<Result<inventory::Snapshot>>([&](auto done) { driver_->read_snapshot(done); });
    ASSERT_TRUE(read && *read);
    snapshot_ = std::make_shared<const inventory::Snapshot>(**read);
  }
  // Of GPU 0, and waits until it is set: calls of the driver are made in their order.
  void use_target(std::optional<PowerTarget> target) {
    thread_.run_on_loop([&] {
      std::map<DeviceUuid, PowerTarget> targets;
      if (target) targets[gpu()] = *target;
      controller_->set_targets(std::move(targets), snapshot_);
    });
    for (int call = 0; call < 3; ++call) {
      const auto read = thread_.await<Result<PowerReading>>(
          [&](auto done) { read_power(*driver_, gpu(), kCallTimeout, std::move(done)); });
      ASSERT_TRUE(read);
    }
  }
  void stop_agent() {
    const auto stopped = thread_.await<bool>(
        [&](auto done) { controller_->restore_all(kPowerDeadline, [done] { done(true); }); });
    ASSERT_TRUE(stopped);
  }

  DeviceUuid gpu() const { return snapshot_->gpus[0].uuid; }
  std::string state_dir() const { return root_.sim_root() + "/state"; }
  bool has_record() const { return std::filesystem::exists(state_dir() + "/" + kPowerFile); }
  int watts() { return root_.edit_machine()->gpus[0].power_limit_mw / 1000; }
  int highest_locked() { return root_.edit_machine()->gpus[0].clocks.locked_graphics[1]; }
  std::vector<std::string> problems() {
    std::vector<std::string> all;
    thread_.run_on_loop([&] {
      for (const auto& status : controller_->statuses())
        all.insert(all.end(), status.problems.begin(), status.problems.end());
    });
    return all;
  }
  void answer_call(const std::string& call, std::uint32_t nvml_return) {
    const auto machine = root_.edit_machine();
    sim::set_text(machine->answers[0].call, call);
    machine->answers[0].gpu = sim::kMaxGpus;
    machine->answers[0].nvml_return = nvml_return;
    machine->answer_count = 1;
  }

  nvml::SimRoot root_;
  nvml::LoopThread thread_;
  EventList reporter_;
  std::unique_ptr<NvmlDriver> driver_;
  std::unique_ptr<PowerController> controller_;
  inventory::SnapshotPtr snapshot_;
};

TEST_F(PowerControllerTest, SetsAndRestoresWhenTheRuleGoes) {
  root_.edit_machine()->gpus[0].power_limit_mw = 600'000;
  use_target(PowerTarget{.values = {PowerLimit{500, 0}, ClockRange{1200, 1410}}});
  EXPECT_EQ(watts(), 500);
  EXPECT_EQ(highest_locked(), 1410);
  EXPECT_TRUE(has_record());
  EXPECT_THAT(problems(), IsEmpty());
  thread_.run_on_loop([&] {
    EXPECT_THAT(controller_->statuses(),
                ElementsAre(GpuPowerStatus{.gpu = gpu(), .limit = MilliWatts{500'000}, .source = "rule"}));
  });
  use_target(limit_target(400));
  EXPECT_EQ(watts(), 400);
  EXPECT_EQ(highest_locked(), 0);
  use_target(std::nullopt);
  EXPECT_EQ(watts(), 600) << "what was there before";
  EXPECT_FALSE(has_record());
  thread_.run_on_loop([&] { EXPECT_FALSE(controller_->has_work()); });
}

TEST_F(PowerControllerTest, RestoresAtTheEnd) {
  use_target(PowerTarget{.values = {PowerLimit{500, 0}, ClockRange{1200, 1410}}});
  stop_agent();
  EXPECT_EQ(watts(), 700);
  EXPECT_EQ(highest_locked(), 0);
  EXPECT_FALSE(has_record());
}

TEST_F(PowerControllerTest, TheNextAgentRestoresWhatAKilledOneFound) {
  root_.edit_machine()->gpus[0].power_limit_mw = 600'000;
  use_target(limit_target(500));
  kill_agent();
  EXPECT_EQ(watts(), 500);
  start_agent();
  use_target(limit_target(500));
  EXPECT_EQ(watts(), 500) << "it adopts the record";
  kill_agent();
  start_agent();
  use_target(std::nullopt);
  EXPECT_EQ(watts(), 600);
  EXPECT_FALSE(has_record());
}

TEST_F(PowerControllerTest, CleanupRestoresWhatAKilledAgentFound) {
  EXPECT_EQ(restore_recorded_power(state_dir(), {.driver_root = "/nowhere"}).value(), 0u) << "asks no driver";
  use_target(PowerTarget{.values = {PowerLimit{500, 0}, ClockRange{1200, 1410}}});
  kill_agent();
  EXPECT_FALSE(restore_recorded_power(state_dir(), {.driver_root = "/nowhere"}));
  EXPECT_TRUE(has_record());
  const auto restored = restore_recorded_power(state_dir(), {.driver_root = root_.sim_root()});
  ASSERT_TRUE(restored) << restored.error().full_message();
  EXPECT_EQ(*restored, 1u);
  EXPECT_EQ(watts(), 700);
  EXPECT_EQ(highest_locked(), 0);
  EXPECT_FALSE(has_record());
}

TEST_F(PowerControllerTest, AReloadedDriverGetsTheLimitAndTheLocksAgain) {
  use_target(PowerTarget{.values = {PowerLimit{500, 0}, ClockRange{1200, 1410}}});
  {
    const auto machine = root_.edit_machine();
    sim::unload_driver(*machine);
    sim::load_driver(*machine);
  }
  EXPECT_EQ(watts(), 700);
  read_driver();
  use_target(PowerTarget{.values = {PowerLimit{500, 0}, ClockRange{1200, 1410}}});
  EXPECT_EQ(watts(), 500);
  EXPECT_EQ(highest_locked(), 1410);
}

TEST_F(PowerControllerTest, AnotherProgramsLimitIsSaidAndLeftAlone) {
  use_target(limit_target(500));
  root_.edit_machine()->gpus[0].power_limit_mw = 450'000;
  read_snapshot();
  use_target(limit_target(500));
  EXPECT_EQ(watts(), 450);
  const std::string drift = "another program has set the power limit to 450W: gpulet's is 500W";
  EXPECT_THAT(problems(), ElementsAre(drift));
  thread_.run_on_loop([&] { EXPECT_EQ(controller_->statuses().at(0).limit, std::nullopt); });
  EXPECT_THAT(reporter_.events, ElementsAre(HasSubstr(drift)));
  read_snapshot();
  use_target(limit_target(500));
  EXPECT_EQ(reporter_.events.size(), 1u) << "once";
  stop_agent();
  EXPECT_EQ(watts(), 450);
}

TEST_F(PowerControllerTest, WhatTheDriverRefusesIsSaidOnceAndChangesNothing) {
  constexpr std::uint32_t kNoPermission = 4;
  answer_call("nvmlDeviceSetPowerManagementLimit", kNoPermission);
  use_target(limit_target(500));
  EXPECT_EQ(watts(), 700);
  EXPECT_FALSE(has_record());
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("CAP_SYS_ADMIN")));
  thread_.run_on_loop([&] { EXPECT_EQ(controller_->statuses().at(0).limit, std::nullopt); });
  EXPECT_THAT(reporter_.events, ElementsAre(HasSubstr("cannot set the power limit 500W: ")));
  read_snapshot();
  use_target(limit_target(500));
  EXPECT_EQ(reporter_.events.size(), 1u);
  root_.edit_machine()->answer_count = 0;
  read_snapshot();
  use_target(limit_target(500));
  EXPECT_EQ(watts(), 500);
  EXPECT_THAT(problems(), IsEmpty());
}

TEST_F(PowerControllerTest, ALimitOutOfBoundsIsNotSetAndLiftsNone) {
  use_target(limit_target(500));
  use_target(limit_target(100));
  EXPECT_EQ(watts(), 500) << "the former stays";
  use_target(std::nullopt);
  EXPECT_EQ(watts(), 700);
  EXPECT_THAT(reporter_.events,
              ElementsAre(HasSubstr("the power limit 100W is not set: the driver takes 200W")));
}

TEST_F(PowerControllerTest, AnUnreadableRecordIsKeptAndTheDefaultIsRestored) {
  use_target(limit_target(500));
  kill_agent();
  ASSERT_TRUE(write_file_atomic(state_dir() + "/" + kPowerFile, "{"));
  start_agent();
  EXPECT_EQ(read_file(state_dir() + "/" + kPowerFile + kBrokenPowerSuffix).value_or(""), "{");
  use_target(limit_target(400));
  EXPECT_EQ(watts(), 400);
  use_target(std::nullopt);
  EXPECT_EQ(watts(), 700) << "not 500";
}

TEST_F(PowerControllerTest, CleanupDropsTheRecordOfAGpuThatHasLeft) {
  use_target(limit_target(500));
  kill_agent();
  auto records = load_power_records(state_dir() + "/" + kPowerFile).value();
  records[DeviceUuid("GPU-gone")] = records.begin()->second;
  ASSERT_TRUE(save_power_records(state_dir() + "/" + kPowerFile, records));
  const auto restored = restore_recorded_power(state_dir(), {.driver_root = root_.sim_root()});
  ASSERT_TRUE(restored) << restored.error().full_message();
  EXPECT_EQ(*restored, 1u);
  EXPECT_EQ(watts(), 700);
  EXPECT_FALSE(has_record());
}

TEST_F(PowerControllerTest, WithoutARecordNothingIsSet) {
  std::filesystem::remove_all(state_dir());
  std::filesystem::create_symlink("/proc/nowhere", state_dir());
  use_target(limit_target(500));
  EXPECT_EQ(watts(), 700);
  EXPECT_THAT(problems(), ElementsAre(HasSubstr("cannot be recorded")));
}

TEST_F(PowerControllerTest, ARuleWithoutValuesAsksTheDriverNothing) {
  answer_call("nvmlDeviceGetPowerManagementLimit", 999);
  use_target(PowerTarget{});
  EXPECT_THAT(problems(), IsEmpty());
}

// Calls that the test answers.
class PowerCallsTest : public testing::Test {
 protected:
  using ReadDone = std::function<void(Result<PowerReading>)>;
  using WriteDone = std::function<void(Result<PowerWritten>)>;

  PowerCallsTest() {
    std::filesystem::remove_all(state_dir());
    std::filesystem::create_directories(state_dir());
    controller_.set_state_dir(state_dir());
  }
  std::string state_dir() const { return testing::TempDir() + "power_calls"; }
  PowerRecords records() const { return load_power_records(state_dir() + "/" + kPowerFile).value(); }
  static PowerReading reading_at(std::uint32_t watts) {
    return {.session = 1,
            .limit = MilliWatts{watts * 1000},
            .bounds = {partition::LimitBounds{{700'000}, {200'000}, {700'000}}}};
  }
  // Answers the only call in progress.
  void answer_read(const Result<PowerReading>& reading) {
    ASSERT_EQ(reads_.size(), 1u);
    const auto done = std::exchange(reads_, {}).front().second;
    done(reading);
  }
  void answer_write(const Result<PowerWritten>& written) {
    ASSERT_EQ(writes_.size(), 1u);
    const auto done = std::exchange(writes_, {}).front().second;
    done(written);
  }
  void use_target(std::map<DeviceUuid, PowerTarget> targets, std::set<DeviceUuid> kept = {}) {
    controller_.set_targets(std::move(targets), snapshot_, kept);
  }
  void set_500_watts(const DeviceUuid& gpu) {
    use_target({{gpu, limit_target(500)}});
    answer_read(reading_at(700));
    answer_write(PowerWritten{.read_back = MilliWatts{500'000}});
  }

  const DeviceUuid a_{"GPU-a"}, b_{"GPU-b"};
  ManualLoop loop_;
  EventList reporter_;
  inventory::SnapshotPtr snapshot_ = std::make_shared<const inventory::Snapshot>();
  std::vector<std::pair<DeviceUuid, ReadDone>> reads_;
  std::vector<std::pair<PowerWrites, WriteDone>> writes_;
  std::vector<Duration> limits_;
  std::vector<std::string> pod_problems_;
  PowerController controller_{
      {.reporter = reporter_,
       .loop = loop_,
       .call_timeout = [] { return kCallTimeout; },
       .read =
           [this](const DeviceUuid& gpu, Duration limit, ReadDone done) {
             limits_.push_back(limit);
             reads_.emplace_back(gpu, std::move(done));
           },
       .write =
           [this](const DeviceUuid&, const PowerWrites& writes, Duration limit, WriteDone done) {
             limits_.push_back(limit);
             writes_.emplace_back(writes, std::move(done));
           },
       .on_pod_problem = [this](const DeviceUuid&,
                                const std::string& problem) { pod_problems_.push_back(problem); }}};
};

TEST_F(PowerCallsTest, AGpuWithoutARecordDoesNotEndTheRestoreOfOthers) {
  use_target({{a_, PowerTarget{}}});
  use_target({{a_, PowerTarget{}}, {b_, limit_target(500)}});
  answer_read(reading_at(700));
  answer_write(PowerWritten{.read_back = MilliWatts{500'000}});
  bool is_done = false;
  limits_.clear();
  controller_.restore_all(kPowerDeadline, [&] { is_done = true; });
  EXPECT_FALSE(is_done);
  answer_read(reading_at(500));
  EXPECT_FALSE(is_done);
  answer_write(PowerWritten{.read_back = MilliWatts{700'000}});
  EXPECT_TRUE(is_done);
  EXPECT_THAT(limits_, ElementsAre(kPowerDeadline, kPowerDeadline));
  EXPECT_THAT(records(), IsEmpty());
}

TEST_F(PowerCallsTest, HaveTheDriversTimeout) {
  set_500_watts(a_);
  EXPECT_THAT(limits_, ElementsAre(kCallTimeout, kCallTimeout));
}

TEST_F(PowerCallsTest, AnotherReadBackIsRecordedAndRestored) {
  use_target({{a_, limit_target(500)}});
  answer_read(reading_at(700));
  answer_write(PowerWritten{.read_back = MilliWatts{510'000}});
  EXPECT_EQ(records().at(a_), (PowerRecord{.before = MilliWatts{700'000}, .set = {{500'000}, {510'000}}}));
  const auto statuses = controller_.statuses();
  ASSERT_EQ(statuses.size(), 1u);
  EXPECT_EQ(statuses[0].limit, std::nullopt);
  EXPECT_EQ(statuses[0].source, "");
  EXPECT_THAT(statuses[0].problems,
              ElementsAre("the power limit 500W is set, but the driver reads 510W back"));
  use_target({});
  answer_read(reading_at(510));
  ASSERT_EQ(writes_.size(), 1u);
  EXPECT_EQ(writes_[0].first, PowerWrites{.limit = MilliWatts{700'000}});
}

TEST_F(PowerCallsTest, FailuresAreTriedAgain) {
  use_target({{a_, limit_target(500)}});
  answer_read(fail(Code::kDeadlineExceeded, "it hangs"));
  EXPECT_EQ(reporter_.events.size(), 1u);
  loop_.advance(kPowerRetry.first);
  answer_read(reading_at(700));
  answer_write(fail(Code::kDeadlineExceeded, "it hangs"));
  loop_.advance(2 * kPowerRetry.first);
  answer_read(reading_at(700));
  answer_write(PowerWritten{.read_back = MilliWatts{500'000}});
  EXPECT_THAT(controller_.statuses().at(0).problems, IsEmpty());
  loop_.advance(kPowerRetry.max);
  EXPECT_THAT(reads_, IsEmpty());
  use_target({});
  answer_read(reading_at(500));
  answer_write(PowerWritten{.limit = fail(Code::kInternal, "no")});
  EXPECT_EQ(controller_.statuses().size(), 1u);
  loop_.advance(kPowerRetry.first);
  answer_read(reading_at(500));
  answer_write(PowerWritten{.read_back = MilliWatts{700'000}});
  EXPECT_FALSE(controller_.has_work());
  EXPECT_THAT(controller_.statuses(), IsEmpty());
}

TEST_F(PowerCallsTest, AReleasedDriverIsNoProblem) {
  use_target({{a_, limit_target(500)}});
  answer_read(fail(Code::kUnavailable, "it is released"));
  EXPECT_THAT(reporter_.events, IsEmpty());
  EXPECT_THAT(controller_.statuses().at(0).problems, IsEmpty());
}

TEST_F(PowerCallsTest, AProblemEndsWithItsRule) {
  use_target({{a_, limit_target(500)}});
  answer_read(fail(Code::kInternal, "unknown"));
  EXPECT_EQ(controller_.statuses().size(), 1u);
  use_target({});
  EXPECT_THAT(controller_.statuses(), IsEmpty());
  EXPECT_FALSE(controller_.has_work());
}

TEST_F(PowerCallsTest, AKeptGpuKeepsWhatItHas) {
  set_500_watts(a_);
  use_target({}, {a_});
  EXPECT_THAT(reads_, IsEmpty());
  use_target({{a_, limit_target(300)}}, {a_});
  EXPECT_THAT(reads_, IsEmpty());
  use_target({{a_, limit_target(300)}});
  EXPECT_EQ(reads_.size(), 1u);
}

TEST_F(PowerCallsTest, ALimitOfThePodDoesNotLiftAKeptOne) {
  set_500_watts(a_);
  use_target({{a_, PowerTarget{.values = {PowerLimit{100, 0}}, .pod = {PowerLimit{600, 0}}}}});
  answer_read(reading_at(500));
  EXPECT_THAT(writes_, IsEmpty());
  EXPECT_EQ(records().count(a_), 1u);
}

TEST_F(PowerCallsTest, APodsMistakeIsNoProblemOfTheGpu) {
  use_target({{a_, PowerTarget{.values = {PowerLimit{500, 0}}, .pod = {PowerLimit{100, 0}}}}});
  answer_read(reading_at(700));
  answer_write(PowerWritten{.read_back = MilliWatts{500'000}});
  EXPECT_THAT(controller_.statuses().at(0).problems, IsEmpty());
  EXPECT_THAT(reporter_.events, IsEmpty());
  EXPECT_THAT(pod_problems_, ElementsAre("the Pod's power limit 100W does not count: the least is 200W"));
}

}  // namespace
}  // namespace gpulet::agent
