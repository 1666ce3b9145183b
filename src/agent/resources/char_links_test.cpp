#include "agent/resources/char_links.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

// A driver root with the nodes of one GPU and one MIG device.
class CharLinkTest : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs CAP_MKNOD";
    std::string pattern = testing::TempDir() + "gpulet-links-XXXXXX";
    root_ = ::mkdtemp(pattern.data());
    config_.flags.container_driver_root = root_;
    std::filesystem::create_directories(root_ + "/dev/char");
    std::filesystem::create_directories(root_ + "/dev/nvidia-caps");
    add_node("/dev/nvidiactl", 195, 255);
    add_node("/dev/nvidia0", 195, 0);
    add_node("/dev/nvidia-caps/nvidia-cap1", 506, 1);
    add_node("/dev/null", 1, 3);
    ASSERT_TRUE(write_file_atomic(root_ + "/dev/nvidia-file", "not a device"));
  }
  ~CharLinkTest() override {
    if (!root_.empty()) std::filesystem::remove_all(root_);
  }
  void add_node(const std::string& path, unsigned major_number, unsigned minor_number) const {
    ASSERT_EQ(::mknod((root_ + path).c_str(), S_IFCHR | 0666, makedev(major_number, minor_number)), 0);
  }
  RootDirectory open() const { return RootDirectory::open_root(root_).value(); }
  std::string link(const std::string& number) const {
    std::error_code none;
    return std::filesystem::read_symlink(root_ + "/dev/char/" + number, none).string();
  }
  bool wait_for_link(const std::string& number) {
    for (int i = 0; link(number).empty() && i < 400; ++i) {
      const auto turn = loop_.after(50ms, [this] { loop_.stop_loop(); });
      loop_.run_loop();
    }
    return !link(number).empty();
  }

  EpollLoop loop_;
  config::Config config_;
  std::string root_;
};

TEST_F(CharLinkTest, FindsTheNodesWithoutALink) {
  const std::vector<CharLink> all = {{"/dev/char/195:0", "../nvidia0"},
                                     {"/dev/char/195:255", "../nvidiactl"},
                                     {"/dev/char/506:1", "../nvidia-caps/nvidia-cap1"}};
  EXPECT_EQ(find_missing_char_links(open(), open()), all);
  std::filesystem::create_symlink("../nvidia0", root_ + "/dev/char/195:0");
  std::filesystem::create_symlink("../gone", root_ + "/dev/char/506:1");
  EXPECT_EQ(find_missing_char_links(open(), open()), (std::vector<CharLink>{all[1], all[2]}));
  const auto of_driver_container = find_missing_char_links(open(), open(), kDriverContainerRoot);
  ASSERT_EQ(of_driver_container.size(), 2u);
  EXPECT_EQ(of_driver_container[1].target, "/run/nvidia/driver/dev/nvidia-caps/nvidia-cap1");
  std::filesystem::remove_all(root_ + "/dev/char");
  EXPECT_TRUE(find_missing_char_links(open(), open()).empty()) << "without systemd nobody needs them";
}

TEST_F(CharLinkTest, CreatesLinksAndRestoresThem) {
  CharLinkKeeper keeper(loop_, config_);
  config_.gpulet.create_device_nodes = false;
  keeper.create_links();
  EXPECT_EQ(link("195:0"), "");
  config_.gpulet.create_device_nodes = true;
  std::filesystem::create_symlink("../gone", root_ + "/dev/char/506:1");
  keeper.create_links();
  EXPECT_EQ(link("195:0"), "../nvidia0");
  EXPECT_EQ(link("506:1"), "../nvidia-caps/nvidia-cap1");
  EXPECT_EQ(link("1:3"), "") << "of another driver";
  std::filesystem::remove(root_ + "/dev/char/195:255");
  EXPECT_TRUE(wait_for_link("195:255"));
  add_node("/dev/nvidia1", 195, 1);
  keeper.create_links();
  EXPECT_EQ(link("195:1"), "../nvidia1");
}

// Another's link is right, wherever it leads.
TEST_F(CharLinkTest, LeavesOthersLinksAlone) {
  std::filesystem::create_symlink("/dev/nvidiactl", root_ + "/dev/char/195:0");
  CharLinkKeeper keeper(loop_, config_);
  std::filesystem::create_directory(root_ + "/dev/char/506:1");
  keeper.create_links();
  EXPECT_EQ(link("195:0"), "/dev/nvidiactl");
  EXPECT_TRUE(std::filesystem::is_directory(root_ + "/dev/char/506:1"));
}

}  // namespace
}  // namespace gpulet::agent
