#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/driver/driver_release.h"
#include "agent/health/operator_interface.h"
#include "base/file.h"
#include "base/process.h"
#include "cli/commands/commands.h"
#include "health/report/health_report.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

constexpr WallTime kReleaseTime{std::chrono::seconds(1'763'712'000)};

class DriverCommandTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "driver_command.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    options_.health_file = directory_ + "/health.json";
    options_.state_dir = directory_ + "/state";
    options_.timeout = 20s;
  }
  void TearDown() override {
    agent_.reset();
    std::filesystem::remove_all(directory_);
  }
  void hold_agent_lock() {
    auto held = ProcessLock::acquire_lock(agent::presence_path(options_.state_dir));
    ASSERT_TRUE(held) << held.error().full_message();
    agent_.emplace(std::move(*held));
  }
  void write_report(std::optional<health::DriverRelease> release, bool has_driver = true) {
    health::HealthStateMachine machine({}, health::XidFilter("", ""));
    inventory::Snapshot snapshot;
    inventory::Gpu gpu;
    gpu.uuid = DeviceUuid("GPU-a1");
    if (!has_driver) gpu.unreadable = Error(Code::kUnavailable, "the driver is not loaded");
    snapshot.gpus.push_back(gpu);
    machine.apply_snapshot(snapshot, Time(1s));
    auto view = build_health_view(machine, snapshot, {Time(3s), kReleaseTime});
    view.release = std::move(release);
    ASSERT_TRUE(write_file_atomic(options_.health_file, health::format_report(view)));
  }
  CommandOutput run_driver(DriverVerb verb) { return driver_output(verb, options_, kReleaseTime); }
  std::optional<agent::ReleaseRequest> saved_request() {
    const auto request = agent::read_release(agent::release_path(options_.state_dir));
    EXPECT_TRUE(request) << request.error().full_message();
    return request ? *request : std::nullopt;
  }

  std::string directory_;
  DriverOptions options_;
  std::optional<ProcessLock> agent_;
};

TEST_F(DriverCommandTest, WithoutAnAgentItSavesTheRequest) {
  options_.reason = "firmware update";
  EXPECT_EQ(run_driver(DriverVerb::kStatus).out, "no agent is running on this node\n");
  const auto released = run_driver(DriverVerb::kRelease);
  EXPECT_EQ(released.exit_code, 0) << released.err;
  EXPECT_EQ(released.out, "saved; no agent is running on this node, so it does not hold the driver\n");
  EXPECT_EQ(saved_request(), (agent::ReleaseRequest{kReleaseTime, "firmware update"}));
  const auto status = run_driver(DriverVerb::kStatus);
  EXPECT_EQ(status.exit_code, kNeedsAction);
  EXPECT_EQ(status.out, "no agent is running on this node; it will start released: firmware update\n");
  EXPECT_EQ(run_driver(DriverVerb::kAcquire).exit_code, 0);
  EXPECT_EQ(saved_request(), std::nullopt);
}

TEST_F(DriverCommandTest, ReleaseReturnsOnceTheDriverIsClosed) {
  hold_agent_lock();
  options_.reason = "firmware update";
  write_report(health::DriverRelease{"firmware update", false});
  options_.timeout = 1ms;
  const auto waiting = run_driver(DriverVerb::kRelease);
  EXPECT_EQ(waiting.exit_code, kFailed);
  EXPECT_NE(waiting.err.find("within 1ms"), std::string::npos) << waiting.err;
  EXPECT_EQ(run_driver(DriverVerb::kStatus).out, "being released or acquired: firmware update\n");
  options_.timeout = 20s;
  write_report(health::DriverRelease{"firmware update", true});
  EXPECT_EQ(run_driver(DriverVerb::kRelease).out, "released: firmware update\n");
  const auto status = run_driver(DriverVerb::kStatus);
  EXPECT_EQ(status.out, "released: firmware update\n");
  EXPECT_EQ(status.exit_code, kNeedsAction);
}

TEST_F(DriverCommandTest, AcquireReturnsOnceTheGpusAreRead) {
  hold_agent_lock();
  write_report(std::nullopt);
  EXPECT_EQ(run_driver(DriverVerb::kAcquire).out, "acquired\n");
  EXPECT_EQ(run_driver(DriverVerb::kStatus).exit_code, 0);
  write_report(std::nullopt, false);
  const auto missing = run_driver(DriverVerb::kAcquire);
  EXPECT_EQ(missing.exit_code, kFailed);
  EXPECT_NE(missing.err.find("the driver is acquired, but the GPUs cannot be read: the driver is not loaded"),
            std::string::npos)
      << missing.err;
  EXPECT_EQ(run_driver(DriverVerb::kStatus).exit_code, kNeedsAction);
  write_report(health::DriverRelease{"driver upgrade (node label x=paused-for-driver-upgrade)\x1b", true});
  const auto paused = run_driver(DriverVerb::kAcquire);
  EXPECT_EQ(paused.exit_code, kFailed);
  EXPECT_NE(paused.err.find("the driver stays released: driver upgrade (node label"), std::string::npos)
      << paused.err;
  EXPECT_EQ(paused.err.find('\x1b'), std::string::npos);
}

TEST_F(DriverCommandTest, InvalidOptionsAreRefused) {
  options_.reason = std::string(agent::kMaxReleaseReason + 1, 'x');
  EXPECT_EQ(run_driver(DriverVerb::kRelease).exit_code, kWrongCommand);
  options_.reason.clear();
  options_.timeout = Duration::zero();
  EXPECT_EQ(run_driver(DriverVerb::kAcquire).exit_code, kWrongCommand);
  options_.timeout = 1s;
  options_.state_dir.clear();
  EXPECT_EQ(run_driver(DriverVerb::kStatus).exit_code, kWrongCommand);
}

}  // namespace
}  // namespace gpulet::cli
