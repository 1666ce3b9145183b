#include "agent/resources/cdi_controller.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <mutex>

#include "agent/node/test_reporter.h"
#include "base/file.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using NameSet = std::set<std::string>;

// The disk: the input of the newest write, and its result.
struct Disk {
  std::mutex mutex;
  unsigned write_count = 0;
  std::string version;
  CdiWriteResult result;
};

class CdiControllerTest : public testing::Test {
 protected:
  CdiControllerTest() {
    config_.flags.device_list_strategy = {config::DeviceListStrategy::kCdiCri};
    snapshot_.driver.version = "570";
    disk_.result.names = {"v/gpu=a"};
  }
  CdiWriteResult write_specs(const inventory::Snapshot& snapshot) {
    const std::lock_guard lock(disk_.mutex);
    ++disk_.write_count;
    disk_.version = snapshot.driver.version;
    return disk_.result;
  }
  // Runs the loop until `done`, checked after every change.
  void run_until(const std::function<bool()>& done) {
    done_ = done;
    auto limit = loop_.after(20s, [this] {
      ADD_FAILURE() << "nothing more came";
      loop_.stop_loop();
    });
    update_specs();
    loop_.run_loop();
  }
  void update_specs() {
    if (done_()) {
      loop_.stop_loop();
    } else {
      poll_ = loop_.after(2ms, [this] { update_specs(); });
    }
  }
  unsigned write_count() {
    const std::lock_guard lock(disk_.mutex);
    return disk_.write_count;
  }
  void set_result(CdiWriteResult result) {
    const std::lock_guard lock(disk_.mutex);
    disk_.result = std::move(result);
  }

  EpollLoop loop_;
  RecordingReporter reporter_;
  Disk disk_;
  config::Config config_;
  inventory::Snapshot snapshot_;
  unsigned changes_ = 0;
  std::function<bool()> done_;
  Subscription poll_;
  CdiController controller_{
      loop_, reporter_, [this] { ++changes_; },
      [this](const inventory::Snapshot& snapshot, const config::Config&) { return write_specs(snapshot); }};
};

TEST_F(CdiControllerTest, WritesNothingWithoutACdiStrategy) {
  config_.flags.device_list_strategy = {config::DeviceListStrategy::kEnvvar};
  EXPECT_EQ(controller_.update_specs(snapshot_, config_), std::nullopt);
  loop_.post([this] { loop_.stop_loop(); });
  loop_.run_loop();
  EXPECT_EQ(write_count(), 0u);
}

TEST_F(CdiControllerTest, ReturnsNamesOnceTheyAreOnDisk) {
  EXPECT_EQ(controller_.update_specs(snapshot_, config_), NameSet{});
  run_until([this] { return changes_ == 1; });
  EXPECT_EQ(controller_.update_specs(snapshot_, config_), NameSet{"v/gpu=a"});
  EXPECT_EQ(write_count(), 1u);  // nothing differs, nothing is written
}

TEST_F(CdiControllerTest, DropsNamesOfAnotherDriver) {
  controller_.update_specs(snapshot_, config_);
  run_until([this] { return changes_ == 1; });
  snapshot_.driver.version = "575";
  EXPECT_EQ(controller_.update_specs(snapshot_, config_), NameSet{});
  run_until([this] { return changes_ == 2; });
  EXPECT_EQ(controller_.update_specs(snapshot_, config_), NameSet{"v/gpu=a"});
  EXPECT_EQ(disk_.version, "575");
}

TEST_F(CdiControllerTest, WritesAgainAfterAChangeDuringAWrite) {
  controller_.update_specs(snapshot_, config_);
  for (unsigned minor = 1; minor < 20; ++minor) {
    inventory::Gpu gpu;
    gpu.minor = minor;
    snapshot_.gpus = {gpu};
    controller_.update_specs(snapshot_, config_);
  }
  run_until([this] { return write_count() >= 2; });
  EXPECT_LE(write_count(), 3u);
}

TEST_F(CdiControllerTest, WritesAgainForMemoryLimits) {
  const auto without = spec_inputs_key(snapshot_, config_);
  config_.gpulet.fraction.limit_dir = "/run/other";
  EXPECT_EQ(spec_inputs_key(snapshot_, config_), without);
  config_.gpulet.fraction.driver_limits = true;
  EXPECT_EQ(spec_inputs_key(snapshot_, config_), without + "\n/run/other/agent.sock");
}

TEST_F(CdiControllerTest, ReportsAnErrorOnceAndKeepsTheNames) {
  set_result({{"v/gpu=a"}, {}, {}, Error(Code::kIo, "no space left", "/var/run/cdi")});
  controller_.update_specs(snapshot_, config_);
  run_until([this] { return changes_ == 1; });
  snapshot_.driver.version = "575";
  controller_.update_specs(snapshot_, config_);
  run_until([this] { return changes_ == 2; });
  ASSERT_EQ(reporter_.reported_texts().size(), 1u);
  EXPECT_EQ(reporter_.reported_texts()[0], "CdiSpecFailed: /var/run/cdi: no space left");
}

TEST_F(CdiControllerTest, WritesAgainWhenDriverFilesChange) {
  std::string directory = testing::TempDir() + "cdi-controller.XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  set_result({{"v/gpu=a"}, {directory}, {}, {}});
  controller_.update_specs(snapshot_, config_);
  run_until([this] { return changes_ == 1; });
  set_result({{"v/gpu=b"}, {directory}, {}, {}});
  ASSERT_TRUE(write_file_atomic(directory + "/libcuda.so.1", "new"));
  run_until([this] { return changes_ == 2; });
  EXPECT_EQ(controller_.update_specs(snapshot_, config_), NameSet{"v/gpu=b"});
  std::filesystem::remove_all(directory);
}

TEST_F(CdiControllerTest, WritesAgainWhenDeviceNodesChange) {
  EXPECT_FALSE(controller_.rewrite_specs(config_)) << "nothing has been written yet";
  controller_.update_specs(snapshot_, config_);
  EXPECT_TRUE(controller_.rewrite_specs(config_)) << "during a write";
  run_until([this] { return changes_ == 2; });
  EXPECT_EQ(write_count(), 2u);
  EXPECT_TRUE(controller_.rewrite_specs(config_));
  run_until([this] { return changes_ == 3; });  // the names are the same
  EXPECT_EQ(write_count(), 3u);
  config_.flags.device_list_strategy = {config::DeviceListStrategy::kEnvvar};
  EXPECT_FALSE(controller_.rewrite_specs(config_));
}

// A node that comes while the specs are written is in those of the next write.
TEST_F(CdiControllerTest, KnowsWhatTheSpecsOnDiskWereBegunWithout) {
  const std::string root = testing::TempDir() + "specs_without_uvm";
  std::filesystem::remove_all(root);
  ASSERT_TRUE(make_directories(root + "/dev"));
  ASSERT_TRUE(write_file_atomic(root + "/dev/nvidiactl", ""));
  config_.flags.container_driver_root = root;
  controller_.update_specs(snapshot_, config_);
  ASSERT_TRUE(write_file_atomic(root + "/dev/nvidia-uvm", ""));
  run_until([this] { return changes_ == 1; });
  EXPECT_NE(controller_.compute_problem().find("/dev/nvidia-uvm is missing"), std::string::npos);
  ASSERT_TRUE(controller_.rewrite_specs(config_));
  run_until([this] { return changes_ == 2; });
  EXPECT_EQ(controller_.compute_problem(), "");
  config_.flags.device_list_strategy = {config::DeviceListStrategy::kEnvvar};
  EXPECT_FALSE(controller_.update_specs(snapshot_, config_));
  EXPECT_EQ(controller_.compute_problem(), "");
  std::filesystem::remove_all(root);
}

TEST_F(CdiControllerTest, CanBeDestroyedDuringAWrite) {
  auto controller = std::make_unique<CdiController>(
      loop_, reporter_, [this] { ++changes_; },
      [](const inventory::Snapshot&, const config::Config&) {
        return CdiWriteResult{{"v/gpu=a"}, {}, {}, {}};
      });
  controller->update_specs(snapshot_, config_);
  controller.reset();
  const auto later = loop_.after(20ms, [this] { loop_.stop_loop(); });
  loop_.run_loop();
  EXPECT_EQ(changes_, 0u);
}

}  // namespace
}  // namespace gpulet::agent
