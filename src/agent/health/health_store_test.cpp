#include "agent/health/health_store.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "agent/health/test_health.h"
#include "base/file.h"
#include "nvml/test_loop_thread.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::XidReport;

class HealthStateSaverTest : public testing::Test {
 protected:
  void SetUp() override { loop_.advance(1h); }
  health::HealthStateMachine fresh() { return {health::Policy(), health::XidFilter("", "")}; }
  void break_one(health::HealthStateMachine& machine) {
    machine.apply_snapshot(FakeHealthDriver::snapshot_of_gpus(2), loop_.now());
    machine.add_evidence({{DeviceUuid("GPU-0")}, loop_.now(), XidReport{.code = 95}});
  }

  ManualLoop loop_;
  FakeHealthStore memory_{loop_};
};

TEST_F(HealthStateSaverTest, SimultaneousChangesAreSavedOnceAndSoon) {
  auto machine = fresh();
  HealthStateSaver keeper(loop_, &memory_, machine);
  keeper.restore_machine();
  keeper.save_if_changed();
  loop_.advance(1h);
  EXPECT_EQ(memory_.writes, 0u) << "nothing is to be kept";
  break_one(machine);
  for (int i = 0; i < 100; ++i) keeper.save_if_changed();
  loop_.advance(kSaveDelay);
  EXPECT_EQ(memory_.writes, 1u);
  ASSERT_EQ(memory_.saved.gpus.size(), 1u);
  EXPECT_EQ(memory_.saved.gpus[0].faults.size(), 1u);
  EXPECT_EQ(memory_.saved.boot_id, "boot-1");
  loop_.advance(1h);
  EXPECT_EQ(memory_.writes, 1u);
}

TEST_F(HealthStateSaverTest, RestoresWhatWasSaved) {
  {
    auto machine = fresh();
    HealthStateSaver keeper(loop_, &memory_, machine);
    keeper.restore_machine();
    break_one(machine);
  }
  EXPECT_EQ(memory_.writes, 1u) << "its end writes what was not written yet";
  auto machine = fresh();
  HealthStateSaver keeper(loop_, &memory_, machine);
  keeper.restore_machine();
  machine.apply_snapshot(FakeHealthDriver::snapshot_of_gpus(2), loop_.now());
  EXPECT_EQ(machine.device_status({DeviceUuid("GPU-0")})->state, health::DeviceState::kQuarantined);
  EXPECT_EQ(machine.device_status({DeviceUuid("GPU-1")})->faults.size(), 0u);
}

TEST_F(HealthStateSaverTest, AFailedSaveIsRetriedWithBackoff) {
  memory_.failure = Error(Code::kIo, "no space left");
  auto machine = fresh();
  std::vector<bool> failing;
  HealthStateSaver keeper(loop_, &memory_, machine,
                          [&] { failing.push_back(keeper.save_error().has_value()); });
  keeper.restore_machine();
  break_one(machine);
  keeper.save_if_changed();
  loop_.advance(1h);
  EXPECT_GE(memory_.writes, 12u);
  EXPECT_LE(memory_.writes, 60u);
  EXPECT_EQ(failing, std::vector<bool>{true});
  memory_.failure.reset();
  loop_.advance(kSaveBackoff.max);
  EXPECT_EQ(memory_.saved.gpus.size(), 1u);
  EXPECT_EQ(failing, (std::vector<bool>{true, false}));
  const auto writes = memory_.writes;
  loop_.advance(1h);
  EXPECT_EQ(memory_.writes, writes);
}

TEST_F(HealthStateSaverTest, WithoutAStoreNothingIsSaved) {
  auto machine = fresh();
  HealthStateSaver keeper(loop_, nullptr, machine);
  keeper.restore_machine();
  break_one(machine);
  keeper.save_if_changed();
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

class HealthFileStoreTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(directory_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  static health::PersistedState something() {
    return {"boot-1", {{DeviceUuid("GPU-7"), "", 3, WallTime(5s), {}}}};
  }
  Status write_and_wait(HealthFileStore& file, const health::PersistedState& saved) {
    return thread_.await<Status>([&](auto done) { file.save_state(saved, done); })
        .value_or(fail(Code::kInternal, "never"));
  }

  std::string directory_ = std::filesystem::temp_directory_path().string() + "/gpulet-memory-XXXXXX";
  nvml::LoopThread thread_;
};

TEST_F(HealthFileStoreTest, IsReadByTheNextProcess) {
  const auto path = directory_ + "/deep/health-state";
  HealthFileStore file(thread_.loop(), path);
  EXPECT_TRUE(file.load_state()->gpus.empty()) << "none is there yet";
  ASSERT_TRUE(write_and_wait(file, something()));
  HealthFileStore next(thread_.loop(), path);
  EXPECT_EQ(*next.load_state(), something());
  ASSERT_TRUE(next.save_state_now({"boot-2", {}}));
  EXPECT_EQ(*HealthFileStore(thread_.loop(), path).load_state(), (health::PersistedState{"boot-2", {}}));
  EXPECT_FALSE(file.current_boot_id().empty());
}

TEST_F(HealthFileStoreTest, WithoutAPathItIsKeptInMemory) {
  HealthFileStore file(thread_.loop(), "");
  EXPECT_TRUE(file.load_state()->gpus.empty());
  ASSERT_TRUE(write_and_wait(file, something()));
  EXPECT_EQ(*file.load_state(), something());
  file.change_path(directory_ + "/state");
  EXPECT_EQ(*file.load_state(), something());
  ASSERT_TRUE(write_and_wait(file, something()));
  EXPECT_TRUE(read_file(directory_ + "/state"));
}

TEST_F(HealthFileStoreTest, ReadAndWriteErrors) {
  const auto path = directory_ + "/file";
  ASSERT_TRUE(write_file_atomic(path, "something else"));
  HealthFileStore below(thread_.loop(), path + "/state");
  EXPECT_FALSE(write_and_wait(below, something()));
  EXPECT_EQ(HealthFileStore(thread_.loop(), path).load_state().error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpulet::agent
