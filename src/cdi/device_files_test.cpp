#include "cdi/device_files.h"

#include <gmock/gmock.h>

#include "cdi/test_driver_root.h"

namespace gpulet::cdi {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> paths(const std::vector<DeviceNode>& nodes) {
  std::vector<std::string> result;
  for (const DeviceNode& node : nodes) result.push_back(node.path);
  return result;
}

inventory::PciAddress address(const std::string& text) {
  return inventory::PciAddress::from_text(text).value();
}

class DeviceFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!tree_.make_node("/dev/null", 1, 3))
      GTEST_SKIP() << "cannot create device nodes here: " << std::strerror(errno);
  }
  TestTree tree_;
};

TEST_F(DeviceFilesTest, ReadsNumbersModeAndGroup) {
  ASSERT_TRUE(tree_.make_node("/dev/nvidia3", 195, 3, 0660, 44));
  const Roots roots = tree_.open_tree("/run/nvidia/driver");
  auto files = DeviceFiles::scan_dev_root(roots);
  EXPECT_EQ(files.gpu_node(3),
            (DeviceNode{"/dev/nvidia3", "/run/nvidia/driver/dev/nvidia3", 195, 3, 0660, 44}));
  EXPECT_EQ(files.gpu_node(4), std::nullopt);
  EXPECT_EQ(files.gpu_node(4), std::nullopt);
  EXPECT_THAT(files.warnings(), ElementsAre("not found: /dev/nvidia4"));
}

TEST_F(DeviceFilesTest, AcceptsOnlyCharacterDevices) {
  ASSERT_TRUE(tree_.make_node("/dev/nvidiactl", 195, 255));
  tree_.make_link("/dev/nvidia-uvm", "nvidiactl");
  tree_.make_file("/dev/nvidia-uvm-tools");
  tree_.make_fifo("/dev/nvidia-modeset");
  const Roots roots = tree_.open_tree();
  auto files = DeviceFiles::scan_dev_root(roots);
  EXPECT_THAT(paths(files.control_nodes()), ElementsAre("/dev/nvidiactl"));
  EXPECT_THAT(files.warnings(),
              ElementsAre(HasSubstr("/dev/nvidia-modeset is no"), HasSubstr("/dev/nvidia-uvm is no"),
                          HasSubstr("/dev/nvidia-uvm-tools is no")));
}

TEST_F(DeviceFilesTest, FindsMigCapabilitiesByTheProcRoot) {
  tree_.make_file("/proc/driver/nvidia-caps/mig-minors",
                  "config 1\nmonitor 2\ngpu0/gi1/access 3\ngpu0/gi1/ci0/access 4\ngpu1/gi1/access 30\n"
                  "gpu1/gi1/ci0/access 31\n");
  for (unsigned cap : {1u, 2u, 30u, 31u})
    ASSERT_TRUE(tree_.make_node("/dev/nvidia-caps/nvidia-cap" + std::to_string(cap), 511, cap, 0444));
  const Roots roots = tree_.open_tree();
  auto files = DeviceFiles::scan_dev_root(roots);
  const auto nodes = files.mig_nodes(1, 1, 0);
  EXPECT_THAT(paths(nodes), ElementsAre("/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"));
  EXPECT_EQ(nodes[1].minor, 31u);
  EXPECT_EQ(nodes[1].mode, 0444u);
  EXPECT_THAT(files.mig_nodes(0, 1, 0), IsEmpty()) << "known to the driver, but without a node";
  EXPECT_THAT(files.mig_nodes(0, 9, 0), IsEmpty());
  EXPECT_THAT(files.warnings(), Contains("not found: /dev/nvidia-caps/nvidia-cap4"));
  EXPECT_THAT(files.warnings(), Contains("no MIG capability of gpu0/gi9/ci0 in mig-minors"));
}

TEST_F(DeviceFilesTest, FindsDrmNodesAndByPathLinks) {
  const std::string device = "/devices/pci0000:1a/0000:1b:00.0";
  tree_.make_link("/sys/bus/pci/devices/0000:1b:00.0", "../../.." + device);
  tree_.make_directory("/sys" + device + "/drm/card1");
  tree_.make_directory("/sys" + device + "/drm/renderD129");
  tree_.make_directory("/sys" + device + "/drm/controlD65");  // older kernels: no node
  ASSERT_TRUE(tree_.make_node("/dev/dri/card0", 226, 0, 0660, 44));
  ASSERT_TRUE(tree_.make_node("/dev/dri/card1", 226, 1, 0660, 44));
  ASSERT_TRUE(tree_.make_node("/dev/dri/renderD129", 226, 129, 0660, 105));
  tree_.make_link("/dev/dri/by-path/pci-0000:1b:00.0-card", "../card1");
  tree_.make_link("/dev/dri/by-path/pci-0000:1b:00.0-render", tree_.tree_path() + "/dev/dri/renderD129");
  tree_.make_link("/dev/dri/by-path/pci-0000:1b:00.0-odd", "../card0");
  tree_.make_link("/dev/dri/by-path/pci-0000:02:00.0-card", "../card0");
  const Roots roots = tree_.open_tree("/run/nvidia/driver");
  auto files = DeviceFiles::scan_dev_root(roots);
  const auto drm = files.drm(address("00000000:1B:00.0"));
  EXPECT_THAT(paths(drm.nodes), ElementsAre("/dev/dri/card1", "/dev/dri/renderD129"));
  EXPECT_EQ(drm.nodes[1].gid, 105u);
  EXPECT_EQ(drm.nodes[1].host_path, "/run/nvidia/driver/dev/dri/renderD129");
  EXPECT_THAT(drm.links, ElementsAre(Link{"../card1", "/dev/dri/by-path/pci-0000:1b:00.0-card"},
                                     Link{"../renderD129", "/dev/dri/by-path/pci-0000:1b:00.0-render"}))
      << "as the container sees them, whatever the roots are called";
  EXPECT_THAT(files.drm(address("0000:ff:00.0")).nodes, IsEmpty());
}

TEST_F(DeviceFilesTest, FindsImexChannels) {
  for (unsigned channel : {0u, 2u, 10u})
    ASSERT_TRUE(
        tree_.make_node("/dev/nvidia-caps-imex-channels/channel" + std::to_string(channel), 506, channel));
  tree_.make_file("/dev/nvidia-caps-imex-channels/channel01");
  tree_.make_file("/dev/nvidia-caps-imex-channels/channel1048576");
  const Roots roots = tree_.open_tree("/");
  auto files = DeviceFiles::scan_dev_root(roots);
  EXPECT_THAT(files.imex_channel_ids(), ElementsAre(0u, 2u, 10u));
  const std::string path = "/dev/nvidia-caps-imex-channels/channel10";
  EXPECT_EQ(files.imex_channel(10), (DeviceNode{path, path, 506, 10, 0666, 0}));
  EXPECT_EQ(files.imex_channel(1), std::nullopt);
}

TEST_F(DeviceFilesTest, FindsTheNodesOfOtherModes) {
  const char* const names[] = {"nvidia-fs0",         "nvidia-fs1", "infiniband/uverbs0", "infiniband/umad0",
                               "infiniband/rdma_cm", "gdrdrv",     "nvidia-nvswitchctl", "nvidia-nvswitch0",
                               "nvidia-nvlink",      "dxg"};
  for (const char* name : names) ASSERT_TRUE(tree_.make_node(std::string("/dev/") + name, 240, 1)) << name;
  const Roots roots = tree_.open_tree();
  auto files = DeviceFiles::scan_dev_root(roots);
  EXPECT_THAT(paths(files.gds()), ElementsAre("/dev/nvidia-fs0", "/dev/nvidia-fs1"));
  EXPECT_THAT(paths(files.mofed()), ElementsAre("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"));
  EXPECT_THAT(paths(files.gdrcopy()), ElementsAre("/dev/gdrdrv"));
  EXPECT_THAT(paths(files.nvswitch()), ElementsAre("/dev/nvidia-nvswitch0", "/dev/nvidia-nvswitchctl"));
  EXPECT_THAT(paths(files.wsl()), ElementsAre("/dev/dxg"));
  EXPECT_THAT(files.management(), IsEmpty());
  ASSERT_TRUE(tree_.make_node("/dev/nvidia0", 195, 0));
  ASSERT_TRUE(tree_.make_node("/dev/nvidiactl", 195, 255));
  ASSERT_TRUE(tree_.make_node("/dev/nvidia-caps/nvidia-cap1", 511, 1, 0400));
  ASSERT_TRUE(tree_.make_node("/dev/nvidia-caps-imex-channels/channel0", 506, 0));
  auto again = DeviceFiles::scan_dev_root(roots);
  EXPECT_THAT(paths(again.management()),
              ElementsAre("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap1",
                          "/dev/nvidia-caps-imex-channels/channel0"));
}

TEST(DeviceFilesWithoutNodesTest, FindsNothing) {
  TestTree tree;
  const Roots roots = tree.open_tree();
  auto files = DeviceFiles::scan_dev_root(roots);
  EXPECT_THAT(files.control_nodes(), IsEmpty());
  EXPECT_THAT(files.imex_channel_ids(), IsEmpty());
  EXPECT_THAT(files.management(), IsEmpty());
  EXPECT_EQ(files.warnings().size(), 5u) << "four nodes, and /dev itself";
}

}  // namespace
}  // namespace gpulet::cdi
