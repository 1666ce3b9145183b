#include "agent/preflight/preflight_runner.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace gpulet::agent {
namespace {

using preflight::RunResult;
using Ended = RunResult::Ended;

class PreflightRunnerTest : public testing::Test {
 protected:
  RunResult run_shell(const std::string& script, Duration limit = std::chrono::minutes(1)) {
    std::optional<RunResult> result;
    runner_.start_run(kGpu, "/bin/sh", {"sh", "-c", script}, limit, [&](RunResult got) {
      result = std::move(got);
      loop_.stop_loop();
    });
    loop_.run_loop();
    return result.value_or(RunResult());
  }

  const DeviceUuid kGpu{"GPU-1"};
  EpollLoop loop_;
  PreflightRunner runner_{loop_};
};

TEST_F(PreflightRunnerTest, TellsReportsFromCrashes) {
  for (const char* code : {"0", "1", "3"}) {
    const auto got = run_shell(std::string("echo a report; echo noise >&2; exit ") + code);
    EXPECT_EQ(got.ended, Ended::kReported);
    EXPECT_EQ(got.output, "a report\n");
  }
  EXPECT_EQ(run_shell("printf 'no\\033 driver\\nmore' >&2; exit 2").error,
            "the program ended by exit code 2: no? driver");
  EXPECT_EQ(run_shell("exit 2").error, "the program ended by exit code 2");
  const auto killed = run_shell("kill -SEGV $$");
  EXPECT_EQ(killed.ended, Ended::kCrashed);
  EXPECT_NE(killed.error.find("signal 11"), std::string::npos) << killed.error;
}

TEST_F(PreflightRunnerTest, TheProgramGetsNoEnvironmentAndLittleRoom) {
  EXPECT_EQ(run_shell("env | grep -v -e ^PWD -e ^_ -e ^SHLVL -e ^OLDPWD; exit 0").output, "");
  const auto flood = run_shell("head -c 10000000 /dev/zero | tr '\\0' x; exit 0").output;
  EXPECT_GE(flood.size(), preflight::kMaxReportBytes);
  EXPECT_LE(flood.size(), preflight::kMaxReportBytes + 1);
}

TEST_F(PreflightRunnerTest, AHangEndsAtTheLimitWithItsChildren) {
  const auto got = run_shell("cat /dev/zero >/dev/null & wait", std::chrono::milliseconds(200));
  EXPECT_EQ(got.ended, Ended::kTimedOut);
  EXPECT_EQ(got.error, "the checks did not end within 200ms");
}

TEST_F(PreflightRunnerTest, WhatIsKilledIsNoTimeout) {
  loop_.post([this] {
    runner_.kill_runs(DeviceUuid("GPU-2"));
    runner_.kill_runs(kGpu);
  });
  EXPECT_EQ(run_shell("cat /dev/zero >/dev/null").ended, Ended::kCrashed);
}

// For the release of the driver.
TEST_F(PreflightRunnerTest, EndRunsWaitsForTheEndOfAll) {
  unsigned ends = 0, after = 0;
  for (const char* gpu : {"GPU-1", "GPU-2"}) {
    runner_.start_run(DeviceUuid(gpu), "/bin/sh", {"sh", "-c", "cat /dev/zero >/dev/null"},
                      std::chrono::minutes(1), [&](const RunResult&) { ++ends; });
  }
  runner_.end_runs([&] {
    after = ends;
    loop_.stop_loop();
  });
  loop_.run_loop();
  EXPECT_EQ(after, 2u);
  runner_.end_runs([&] { loop_.stop_loop(); });
  loop_.run_loop();
}

TEST_F(PreflightRunnerTest, ItsEndIsTheEndOfAll) {
  std::optional<PreflightRunner> runner(std::in_place, loop_);
  bool has_ended = false;
  for (unsigned i = 0; i < 3; ++i)
    runner->start_run(kGpu, "/bin/sh", {"sh", "-c", "cat /dev/zero >/dev/null"}, std::chrono::minutes(1),
                      [](const RunResult&) {});
  runner->end_runs([&] {
    has_ended = true;
    loop_.stop_loop();
  });
  runner.reset();
  loop_.run_loop();
  EXPECT_TRUE(has_ended) << "who waits for it, is told";
}

TEST_F(PreflightRunnerTest, AProgramThatIsMissingIsSaid) {
  std::optional<RunResult> result;
  runner_.start_run(kGpu, "/nonexistent", {"none"}, std::chrono::minutes(1), [&](RunResult got) {
    result = std::move(got);
    loop_.stop_loop();
  });
  loop_.run_loop();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->ended, Ended::kNotStarted);
  EXPECT_NE(result->error.find("/nonexistent"), std::string::npos);
}

// However slow a write is, the newest record is the last on the disk.
TEST(PreflightRecordStoreTest, WritesOneAfterTheOther) {
  std::string directory = testing::TempDir() + "preflight-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const auto path = directory + "/gpu-preflight";
  EpollLoop loop;
  PreflightRecordStore store(loop);
  preflight::BootRecord record{"boot", {}};
  for (unsigned i = 0; i < 50; ++i) {
    record.gpus[DeviceUuid("GPU-" + std::to_string(i))] = preflight::Verdict::Kind::kPassed;
    store.save_record(path, record, i == 49 ? [&] { loop.stop_loop(); } : std::function<void()>());
  }
  const auto until_last = loop.after(std::chrono::seconds(30), [&] { loop.stop_loop(); });
  loop.run_loop();
  EXPECT_EQ(*preflight::read_boot_record(path), record);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpulet::agent
