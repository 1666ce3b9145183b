#include "agent/health_memory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "agent/test_health.h"
#include "base/file.h"
#include "health/state_file.h"
#include "nvml/test_loop_thread.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::XidReport;

class HealthKeeperTest : public testing::Test {
 protected:
  void SetUp() override { loop_.advance(1h); }
  health::Machine fresh() { return {health::Policy(), health::XidFilter("", "")}; }
  void break_one(health::Machine& machine) {
    machine.on_snapshot(AnsweringDriver::node(2), loop_.now());
    machine.on_evidence({{DeviceUuid("GPU-0")}, loop_.now(), XidReport{.code = 95}});
  }

  ManualLoop loop_;
  MemoryInMemory memory_{loop_};
};

TEST_F(HealthKeeperTest, ChangesOfAMomentAreWrittenOnceAndSoon) {
  auto machine = fresh();
  HealthKeeper keeper(loop_, &memory_, machine);
  keeper.restore();
  keeper.look();
  loop_.advance(1h);
  EXPECT_EQ(memory_.writes, 0u) << "nothing is to be kept";
  break_one(machine);
  for (int i = 0; i < 100; ++i) keeper.look();
  loop_.advance(kSaveDelay);
  EXPECT_EQ(memory_.writes, 1u);
  ASSERT_EQ(memory_.saved.gpus.size(), 1u);
  EXPECT_EQ(memory_.saved.gpus[0].faults.size(), 1u);
  EXPECT_EQ(memory_.saved.boot_id, "boot-1");
  loop_.advance(1h);
  EXPECT_EQ(memory_.writes, 1u);
}

TEST_F(HealthKeeperTest, WhatWasWrittenIsKnownToTheNext) {
  {
    auto machine = fresh();
    HealthKeeper keeper(loop_, &memory_, machine);
    keeper.restore();
    break_one(machine);
  }
  EXPECT_EQ(memory_.writes, 1u) << "its end writes what was not written yet";
  auto machine = fresh();
  HealthKeeper keeper(loop_, &memory_, machine);
  keeper.restore();
  machine.on_snapshot(AnsweringDriver::node(2), loop_.now());
  EXPECT_EQ(machine.standing({DeviceUuid("GPU-0")})->state, health::State::kQuarantined);
  EXPECT_EQ(machine.standing({DeviceUuid("GPU-1")})->faults.size(), 0u);
}

TEST_F(HealthKeeperTest, AFileThatCannotBeWrittenIsTriedAgainEverLater) {
  memory_.failure = Error(Code::kIo, "no space left");
  auto machine = fresh();
  HealthKeeper keeper(loop_, &memory_, machine);
  keeper.restore();
  break_one(machine);
  keeper.look();
  loop_.advance(1h);
  EXPECT_GE(memory_.writes, 12u);
  EXPECT_LE(memory_.writes, 60u);
  memory_.failure.reset();
  loop_.advance(kSaveBackoff.longest);
  EXPECT_EQ(memory_.saved.gpus.size(), 1u);
  const auto writes = memory_.writes;
  loop_.advance(1h);
  EXPECT_EQ(memory_.writes, writes);
}

TEST_F(HealthKeeperTest, WithoutAMemoryNothingIsKept) {
  auto machine = fresh();
  HealthKeeper keeper(loop_, nullptr, machine);
  keeper.restore();
  break_one(machine);
  keeper.look();
  EXPECT_EQ(loop_.pending_timers(), 0u);
}

class HealthFileTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  static health::Saved something() { return {"boot-1", {{DeviceUuid("GPU-7"), "", 3, WallTime(5s), {}}}}; }
  Status write(HealthFile& file, const health::Saved& saved) {
    return thread_.await<Status>([&](auto done) { file.write(saved, done); })
        .value_or(fail(Code::kInternal, "never"));
  }

  std::string folder_ = std::filesystem::temp_directory_path().string() + "/gpulet-memory-XXXXXX";
  nvml::LoopThread thread_;
};

TEST_F(HealthFileTest, IsReadByTheNextProcess) {
  const auto path = folder_ + "/deep/health-state";
  HealthFile file(thread_.loop(), path);
  EXPECT_TRUE(file.read()->gpus.empty()) << "none is there yet";
  ASSERT_TRUE(write(file, something()));
  HealthFile next(thread_.loop(), path);
  EXPECT_EQ(*next.read(), something());
  ASSERT_TRUE(next.write_now({"boot-2", {}}));
  EXPECT_EQ(*HealthFile(thread_.loop(), path).read(), (health::Saved{"boot-2", {}}));
  EXPECT_FALSE(file.boot_id().empty());
}

TEST_F(HealthFileTest, WithoutAPathItIsThisProcessesOwn) {
  HealthFile file(thread_.loop(), "");
  EXPECT_TRUE(file.read()->gpus.empty());
  ASSERT_TRUE(write(file, something()));
  EXPECT_EQ(*file.read(), something());
  file.move_to(folder_ + "/state");
  EXPECT_EQ(*file.read(), something());
  ASSERT_TRUE(write(file, something()));
  EXPECT_TRUE(read_file(folder_ + "/state"));
}

TEST_F(HealthFileTest, WhatCannotBeWrittenOrReadIsAnError) {
  const auto path = folder_ + "/file";
  ASSERT_TRUE(write_file_atomic(path, "something else"));
  HealthFile below(thread_.loop(), path + "/state");
  EXPECT_FALSE(write(below, something()));
  EXPECT_EQ(HealthFile(thread_.loop(), path).read().error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpulet::agent
