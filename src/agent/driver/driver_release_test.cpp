#include "agent/driver/driver_release.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "agent/node/test_reporter.h"
#include "base/file.h"

namespace gpulet::agent {
namespace {

constexpr WallTime kReleasedAt{std::chrono::seconds(1'763'712'000)};

TEST(DriverRelease, FormatsOneLineWithTimeAndReason) {
  EXPECT_EQ(format_release({kReleasedAt, "firmware update"}),
            "gpulet-driver-release 1\n1763712000000 firmware update\n");
  EXPECT_EQ(format_release({kReleasedAt, {}}), "gpulet-driver-release 1\n1763712000000\n");
  EXPECT_EQ(format_release({kReleasedAt, " a\nb\t"}), "gpulet-driver-release 1\n1763712000000 a b\n");
  for (const ReleaseRequest& request : {ReleaseRequest{kReleasedAt, "firmware update"},
                                        ReleaseRequest{kReleasedAt, {}}, ReleaseRequest{WallTime(), "x"}})
    EXPECT_EQ(*parse_release(format_release(request)), request);
}

TEST(DriverRelease, RefusesAnythingElse) {
  for (const char* text :
       {"", "\n", "gpulet-driver-release 2\n1\n", "gpulet-driver-release 1\n", "gpulet-driver-release 1\n12",
        "gpulet-driver-release 1\nsoon\n", "gpulet-driver-release 1\n1 a\n2 b\n",
        "gpulet-driver-release 1\n1 a\x01\n", "gpulet-driver-release 1\n99999999999999999\n"}) {
    const auto parsed = parse_release(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  }
}

TEST(DriverRelease, TheReasonNamesRequestAndLabel) {
  const std::map<std::string, std::string> running = {{"nvidia.com/gpu.deploy.device-plugin", "true"},
                                                      {"nvidia.com/gpu.deploy.dcgm-exporter", "false"},
                                                      {"nvidia.com/gpu.present", "paused-for-nothing"}};
  EXPECT_EQ(release_reason({}, false, running), std::nullopt);
  EXPECT_EQ(release_reason(ReleaseRequest{kReleasedAt, "new riser"}, false, running), "new riser");
  EXPECT_EQ(release_reason(ReleaseRequest{kReleasedAt, {}}, false, {}), "gpulet driver release");
  auto paused = running;
  paused["nvidia.com/gpu.deploy.operator-validator"] = "paused-for-driver-upgrade";
  EXPECT_EQ(release_reason({}, false, paused),
            "driver upgrade (node label nvidia.com/gpu.deploy.operator-validator=paused-for-driver-upgrade)");
  paused["nvidia.com/gpu.deploy.client"] = "paused-for-mig-change";
  EXPECT_EQ(release_reason({}, true, {}), "gpulet mig apply");
  EXPECT_EQ(release_reason(ReleaseRequest{kReleasedAt, "new riser"}, true, paused),
            "new riser; gpulet mig apply; mig change (node label "
            "nvidia.com/gpu.deploy.client=paused-for-mig-change)");
}

class ReleaseFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "driver_release.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory_ = path;
    path_ = release_path(directory_ + "/state");
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  // Runs until the watcher has reported `count` times.
  void run_until_reported(std::size_t count) {
    const auto limit = loop_.after(std::chrono::seconds(20), [this] { loop_.stop_loop(); });
    wanted_ = count;
    if (seen_.size() < count) loop_.run_loop();
    wanted_ = kNotRunning;
    ASSERT_GE(seen_.size(), count);
  }
  ReleaseWatcher::Changed record() {
    return [this](const auto& request) {
      seen_.push_back(request);
      if (seen_.size() >= wanted_) loop_.stop_loop();
    };
  }

  static constexpr std::size_t kNotRunning = ~std::size_t{0};
  EpollLoop loop_;
  RecordingReporter reporter_;
  std::string directory_, path_;
  std::vector<std::optional<ReleaseRequest>> seen_;
  std::size_t wanted_ = kNotRunning;
};

TEST_F(ReleaseFile, TheWatcherFollowsIt) {
  ReleaseWatcher watcher(loop_, reporter_, path_, record());
  ASSERT_EQ(seen_.size(), 1u);
  EXPECT_EQ(seen_[0], std::nullopt);
  ASSERT_TRUE(write_release(path_, {kReleasedAt, "first"}));
  run_until_reported(2);
  EXPECT_EQ(seen_.back(), (ReleaseRequest{kReleasedAt, "first"}));
  EXPECT_TRUE(*remove_release(path_));
  run_until_reported(3);
  EXPECT_EQ(seen_.back(), std::nullopt);
  EXPECT_FALSE(*remove_release(path_));
}

TEST_F(ReleaseFile, AnInvalidFileIsReportedOnceAndChangesNothing) {
  ASSERT_TRUE(write_file_atomic(path_, "yes please\n"));
  ReleaseWatcher watcher(loop_, reporter_, path_, record());
  EXPECT_TRUE(seen_.empty());
  EXPECT_EQ(reporter_.reasons(), std::vector<std::string>{"DriverReleaseUnreadable"});
  ASSERT_TRUE(write_release(path_, {kReleasedAt, {}}));
  run_until_reported(1);
  EXPECT_EQ(seen_.back(), (ReleaseRequest{kReleasedAt, {}}));
  EXPECT_EQ(reporter_.reasons().size(), 1u);
}

TEST_F(ReleaseFile, TheLockOfACommandThatEndsIsNoRequest) {
  const auto path = mig_apply_lock_path(directory_ + "/state");
  std::vector<bool> seen;
  ReleaseLockWatcher watcher(loop_, reporter_, path, [&](bool locked) {
    if (!seen.empty()) loop_.stop_loop();
    seen.push_back(locked);
  });
  const auto limit = loop_.after(std::chrono::seconds(20), [this] { loop_.stop_loop(); });
  for (int round = 0; round < 2; ++round) {  // the second time the file exists already
    auto lock = lock_release(path);
    ASSERT_TRUE(lock) << lock.error().full_message();
    EXPECT_EQ(lock_release(path).error().code(), Code::kFailedPrecondition);
    loop_.run_loop();
    EXPECT_TRUE(seen.back());
    lock = fail(Code::kNotFound, "the command has ended");
    loop_.run_loop();
    EXPECT_FALSE(seen.back());
  }
  EXPECT_EQ(seen, (std::vector<bool>{false, true, false, true, false}));
}

}  // namespace
}  // namespace gpulet::agent
