#include "agent/cdi_care.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <mutex>

#include "agent/test_reporter.h"
#include "base/file.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using NameSet = std::set<std::string>;

// The disk: what the newest writing was about, and what it leaves.
struct Disk {
  std::mutex mutex;
  unsigned writings = 0;
  std::string version;
  CdiWritten result;
};

class CdiCareTest : public testing::Test {
 protected:
  CdiCareTest() {
    config_.flags.device_list_strategy = {config::DeviceListStrategy::kCdiCri};
    snapshot_.driver.version = "570";
    disk_.result.names = {"v/gpu=a"};
  }
  CdiWritten write(const inventory::Snapshot& snapshot) {
    const std::lock_guard lock(disk_.mutex);
    ++disk_.writings;
    disk_.version = snapshot.driver.version;
    return disk_.result;
  }
  // Runs the loop until `done`, looked at after every change.
  void run_until(const std::function<bool()>& done) {
    done_ = done;
    auto limit = loop_.after(20s, [this] {
      ADD_FAILURE() << "nothing more came";
      loop_.stop();
    });
    look();
    loop_.run();
  }
  void look() {
    if (done_()) {
      loop_.stop();
    } else {
      poll_ = loop_.after(2ms, [this] { look(); });
    }
  }
  unsigned writings() {
    const std::lock_guard lock(disk_.mutex);
    return disk_.writings;
  }
  void leave(CdiWritten result) {
    const std::lock_guard lock(disk_.mutex);
    disk_.result = std::move(result);
  }

  EpollLoop loop_;
  Told told_;
  Disk disk_;
  config::Config config_;
  inventory::Snapshot snapshot_;
  unsigned changes_ = 0;
  std::function<bool()> done_;
  Subscription poll_;
  CdiCare care_{
      loop_, told_, [this] { ++changes_; },
      [this](const inventory::Snapshot& snapshot, const config::Config&) { return write(snapshot); }};
};

TEST_F(CdiCareTest, WithoutACdiStrategyNothingIsWritten) {
  config_.flags.device_list_strategy = {config::DeviceListStrategy::kEnvvar};
  EXPECT_EQ(care_.wants(snapshot_, config_), std::nullopt);
  loop_.post([this] { loop_.stop(); });
  loop_.run();
  EXPECT_EQ(writings(), 0u);
}

TEST_F(CdiCareTest, NamesAreKnownOnceTheyAreOnDisk) {
  EXPECT_EQ(care_.wants(snapshot_, config_), NameSet{});
  run_until([this] { return changes_ == 1; });
  EXPECT_EQ(care_.wants(snapshot_, config_), NameSet{"v/gpu=a"});
  EXPECT_EQ(writings(), 1u);  // nothing differs: nothing is written again
}

TEST_F(CdiCareTest, AnotherDriversSpecsAreNotNamed) {
  care_.wants(snapshot_, config_);
  run_until([this] { return changes_ == 1; });
  snapshot_.driver.version = "575";
  EXPECT_EQ(care_.wants(snapshot_, config_), NameSet{});
  run_until([this] { return changes_ == 2; });
  EXPECT_EQ(care_.wants(snapshot_, config_), NameSet{"v/gpu=a"});
  EXPECT_EQ(disk_.version, "575");
}

TEST_F(CdiCareTest, WhatChangesDuringAWritingIsWrittenAfterIt) {
  care_.wants(snapshot_, config_);
  for (unsigned minor = 1; minor < 20; ++minor) {
    inventory::Gpu gpu;
    gpu.minor = minor;
    snapshot_.gpus = {gpu};
    care_.wants(snapshot_, config_);
  }
  run_until([this] { return writings() >= 2; });
  EXPECT_LE(writings(), 3u);
}

TEST_F(CdiCareTest, AnErrorIsToldOnceAndWhatIsThereStays) {
  leave({{"v/gpu=a"}, {}, {}, Error(Code::kIo, "no space left", "/var/run/cdi")});
  care_.wants(snapshot_, config_);
  run_until([this] { return changes_ == 1; });
  snapshot_.driver.version = "575";
  care_.wants(snapshot_, config_);
  run_until([this] { return changes_ == 2; });
  ASSERT_EQ(told_.texts().size(), 1u);
  EXPECT_EQ(told_.texts()[0], "CdiSpecFailed: /var/run/cdi: no space left");
}

TEST_F(CdiCareTest, FilesOfTheDriverThatChangeAreFollowed) {
  std::string folder = testing::TempDir() + "cdi-care.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  leave({{"v/gpu=a"}, {folder}, {}, {}});
  care_.wants(snapshot_, config_);
  run_until([this] { return changes_ == 1; });
  leave({{"v/gpu=b"}, {folder}, {}, {}});
  ASSERT_TRUE(write_file_atomic(folder + "/libcuda.so.1", "new"));
  run_until([this] { return changes_ == 2; });
  EXPECT_EQ(care_.wants(snapshot_, config_), NameSet{"v/gpu=b"});
  std::filesystem::remove_all(folder);
}

TEST_F(CdiCareTest, GoesWhileItWrites) {
  auto care = std::make_unique<CdiCare>(
      loop_, told_, [this] { ++changes_; },
      [](const inventory::Snapshot&, const config::Config&) { return CdiWritten{{"v/gpu=a"}, {}, {}, {}}; });
  care->wants(snapshot_, config_);
  care.reset();
  const auto later = loop_.after(20ms, [this] { loop_.stop(); });
  loop_.run();
  EXPECT_EQ(changes_, 0u);
}

}  // namespace
}  // namespace gpulet::agent
