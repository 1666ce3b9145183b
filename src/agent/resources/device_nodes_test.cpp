#include "agent/resources/device_nodes.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

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
  }
  ~DeviceNodeTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    ASSERT_TRUE(write_file_atomic(root_ + path, text));
  }
  // Runs the loop until the watcher reports a change.
  void wait_for_change() {
    const auto limit = loop_.after(20s, [this] {
      ADD_FAILURE() << "no change reported";
      loop_.stop_loop();
    });
    loop_.run_loop();
  }

  EpollLoop loop_;
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

}  // namespace
}  // namespace gpulet::agent
