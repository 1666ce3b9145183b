#include "agent/resources/device_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>

#include "agent/node/test_reporter.h"
#include "base/process.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kDevices = "Character devices:\n195 nvidia\n505 nvidia-uvm\n506 nvidia-caps\n";
constexpr const char* kMinors = "config 1\nmonitor 2\ngpu2/gi1/access 30\ngpu2/gi1/ci0/access 31\n";

inventory::Snapshot mig_snapshot() {
  inventory::Snapshot snapshot;
  inventory::Gpu gpu;
  gpu.minor = 2;
  gpu.mig_enabled = true;
  inventory::MigDevice mig;
  mig.gpu_instance = 1;
  gpu.mig_devices = {mig, mig};  // of one GPU instance
  snapshot.gpus = {gpu};
  return snapshot;
}

TEST(DeviceNodes, RequiresUvmAndTheCapabilitiesOfMigDevices) {
  const auto snapshot = mig_snapshot();
  EXPECT_THAT(required_device_nodes(kDevices, kMinors, &snapshot),
              ElementsAre(DeviceNodeSpec{"/dev/nvidia-uvm", makedev(505, 0), 0666},
                          DeviceNodeSpec{"/dev/nvidia-uvm-tools", makedev(505, 1), 0666},
                          DeviceNodeSpec{"/dev/nvidia-caps/nvidia-cap2", makedev(506, 2), 0444},
                          DeviceNodeSpec{"/dev/nvidia-caps/nvidia-cap30", makedev(506, 30), 0444},
                          DeviceNodeSpec{"/dev/nvidia-caps/nvidia-cap31", makedev(506, 31), 0444}));
  EXPECT_EQ(required_device_nodes(kDevices, kMinors, nullptr).size(), 2u);
  EXPECT_EQ(required_device_nodes(kDevices, "", &snapshot).size(), 2u);
  EXPECT_THAT(required_device_nodes("Character devices:\n195 nvidia\n", kMinors, &snapshot), IsEmpty());
}

TEST(DeviceNodes, TrustsOnlyTheKernelsOwnDev) {
  const std::string container =
      "30 29 0:40 / / rw - overlay overlay rw\n31 30 0:41 / /dev rw - tmpfs tmpfs rw\n";
  EXPECT_FALSE(mounts_devtmpfs(container));
  EXPECT_TRUE(mounts_devtmpfs(container + "35 31 0:6 / /dev rw shared:9 - devtmpfs udev rw\n"));
  EXPECT_FALSE(mounts_devtmpfs("35 31 0:6 / /dev/nested rw - devtmpfs udev rw\n"));
  EXPECT_FALSE(mounts_devtmpfs("35 31 0:6 / /dev rw -"));
}

class DeviceNodeTest : public testing::Test {
 protected:
  DeviceNodeTest() {
    std::string pattern = testing::TempDir() + "gpulet-nodes-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    config_.flags.container_driver_root = root_;
    std::filesystem::create_directories(root_ + "/dev");
    write("/dev/nvidiactl", "");
    write("/proc/driver/nvidia/version", "");
    write("/proc/devices", kDevices);
    write("/proc/driver/nvidia-caps/mig-minors", kMinors);
  }
  ~DeviceNodeTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    ASSERT_TRUE(write_file_atomic(root_ + path, text));
  }
  bool exists(const std::string& path) const { return std::filesystem::exists(root_ + path); }
  // Runs the loop until the watcher reports a change.
  void wait_for_change() {
    const auto limit = loop_.after(20s, [this] {
      ADD_FAILURE() << "no change reported";
      loop_.stop_loop();
    });
    loop_.run_loop();
  }

  EpollLoop loop_;
  RecordingReporter reporter_;
  config::Config config_;
  std::string root_;
};

TEST_F(DeviceNodeTest, AMissingUvmNodeIsAProblem) {
  const auto root = find_device_root(config_);
  ASSERT_TRUE(root);
  EXPECT_EQ(root->root_path(), root_);
  EXPECT_EQ(find_compute_problem(*root),
            "/dev/nvidia-uvm is missing: load nvidia-uvm, for example with `nvidia-modprobe -u -c 0`");
  write("/dev/nvidia-uvm", "");
  EXPECT_EQ(find_compute_problem(*root), "");
}

TEST_F(DeviceNodeTest, WatcherFollowsNodesAndTheirDirectories) {
  unsigned changes = 0;
  DeviceNodeWatcher watcher(loop_, [&] {
    ++changes;
    loop_.stop_loop();
  });
  watcher.watch_roots({root_});
  watcher.watch_roots({root_});
  write("/dev/nvidia-uvm", "");
  wait_for_change();
  write("/dev/nvidia-caps/nvidia-cap30", "");  // in a directory that is new
  wait_for_change();
  write("/dev/nvidia-caps/nvidia-cap31", "");
  wait_for_change();
  ASSERT_EQ(::chmod((root_ + "/dev/nvidia-uvm").c_str(), 0600), 0);
  wait_for_change();
  std::filesystem::remove_all(root_ + "/dev");
  wait_for_change();
  write("/dev/nvidiactl", "");
  wait_for_change();
  EXPECT_EQ(changes, 6u);
}

TEST_F(DeviceNodeTest, WatcherIgnoresOtherFiles) {
  bool changed = false;
  DeviceNodeWatcher watcher(loop_, [&] { changed = true; });
  watcher.watch_roots({root_});
  write("/dev/other", "");
  write("/dev/nvidia9", "");
  std::filesystem::remove(root_ + "/dev/nvidia9");  // as before, once the burst is over
  const auto end = loop_.after(200ms, [this] { loop_.stop_loop(); });
  loop_.run_loop();
  EXPECT_FALSE(changed);
}

TEST_F(DeviceNodeTest, WatcherReportsANodeThatWasSeenMissing) {
  bool is_missed = false;
  DeviceNodeWatcher watcher(loop_, [this] { loop_.stop_loop(); }, [&] { return is_missed; });
  write("/dev/nvidia-uvm", "");
  watcher.watch_roots({root_});
  // As before once the burst is over, but not while it lasted.
  ASSERT_EQ(::link((root_ + "/dev/nvidia-uvm").c_str(), (root_ + "/kept").c_str()), 0);
  std::filesystem::remove(root_ + "/dev/nvidia-uvm");
  is_missed = true;
  std::filesystem::rename(root_ + "/kept", root_ + "/dev/nvidia-uvm");
  wait_for_change();
}

TEST_F(DeviceNodeTest, CreatesMissingNodes) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs CAP_MKNOD";
  DeviceNodeCreator creator(loop_, reporter_);
  const auto snapshot = mig_snapshot();
  config_.gpulet.create_device_nodes = false;
  EXPECT_FALSE(creator.create_missing_nodes(config_, &snapshot));
  EXPECT_FALSE(exists("/dev/nvidia-uvm"));
  config_.gpulet.create_device_nodes = true;
  EXPECT_TRUE(creator.create_missing_nodes(config_, &snapshot));
  EXPECT_FALSE(creator.create_missing_nodes(config_, &snapshot));
  const auto root = find_device_root(config_);
  EXPECT_EQ(root->character_device("/dev/nvidia-uvm").value(), makedev(505, 0));
  EXPECT_EQ(root->character_device("/dev/nvidia-uvm-tools").value(), makedev(505, 1));
  EXPECT_EQ(root->character_device("/dev/nvidia-caps/nvidia-cap2").value(), makedev(506, 2));
  EXPECT_EQ(root->character_device("/dev/nvidia-caps/nvidia-cap31").value(), makedev(506, 31));
  EXPECT_THAT(reporter_.reported_texts(), IsEmpty());
}

TEST_F(DeviceNodeTest, LoadsUvmWithTheDriversProgram) {
  if (!has_capability(CAP_SYS_MODULE)) GTEST_SKIP() << "needs CAP_SYS_MODULE";
  write("/proc/devices", "Character devices:\n195 nvidia\n");
  const std::string uvm = root_ + "/dev/nvidia-uvm";
  ASSERT_TRUE(write_file_atomic(root_ + "/usr/bin/nvidia-modprobe",
                                "#!/bin/sh\necho \"$@\" >> " + root_ + "/calls\n: > " + uvm + "\n", 0755));
  DeviceNodeCreator creator(loop_, reporter_);
  DeviceNodeWatcher watcher(loop_, [&] { loop_.stop_loop(); });
  watcher.watch_roots({root_});
  creator.create_missing_nodes(config_, nullptr);
  creator.create_missing_nodes(config_, nullptr);
  wait_for_change();
  EXPECT_TRUE(exists("/dev/nvidia-uvm"));
  EXPECT_EQ(read_file(root_ + "/calls").value(), "-u -c 0\n");
}

TEST_F(DeviceNodeTest, ReportsAFailureOnce) {
  DeviceNodeCreator creator(loop_, reporter_);
  // A dangling link: it is neither followed nor replaced.
  std::filesystem::remove_all(root_ + "/dev/nvidia-caps");
  std::filesystem::create_directory_symlink(root_ + "/elsewhere", root_ + "/dev/nvidia-caps");
  write("/dev/nvidia-uvm", "");
  write("/dev/nvidia-uvm-tools", "");
  const auto snapshot = mig_snapshot();
  creator.create_missing_nodes(config_, &snapshot);
  creator.create_missing_nodes(config_, &snapshot);
  EXPECT_THAT(reporter_.reported_texts(), ElementsAre(HasSubstr("DeviceNodeNotCreated")));
  EXPECT_FALSE(exists("/elsewhere"));
}

}  // namespace
}  // namespace gpulet::agent
