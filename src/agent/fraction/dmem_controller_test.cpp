#include "agent/fraction/dmem_controller.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"

namespace gpulet::agent {
namespace {

const inventory::PciAddress kDmemGpu{0, 0x41, 0, 0};

TEST(DmemController, TheRegionOfTheGpuSaysWhoCounts) {
  struct Case {
    const char* capacity;
    bool expected;
  };
  for (const auto& [capacity, expected] : {
           Case{"nvidia/0000:41:00.0/vidmem 85197848576\n", true},
           Case{"drm/0000:03:00.0/vram0 8514437120\nnvidia/0000:41:00.0/vidmem 1\n", true},
           Case{"nvidia/00000000:41:00.0/vidmem 1\n", true},
           Case{"nvidia/0000:42:00.0/vidmem 1\n", false},
           Case{"drm/0000:41:00.0/vidmem 1\n", false},
           Case{"nvidia/0000:41:00.0/sysmem 1\n", false},
           Case{"nvidia/vidmem 1\n", false},
           Case{"nvidia//vidmem 1\n", false},
           Case{"nvidia/x/vidmem", false},
           Case{"", false},
       })
    EXPECT_EQ(counts_gpu_memory(capacity, kDmemGpu), expected) << capacity;
}

// Directories and files with the names of cgroup v2.
class DmemTree : public testing::Test {
 protected:
  DmemTree() {
    for (const auto& directory : {mount, slice(), pod(), container()}) {
      std::filesystem::create_directories(directory);
      write(directory + "/cgroup.subtree_control", "cpu memory\n");
    }
    write(mount + "/dmem.capacity", "nvidia/0000:41:00.0/vidmem 85197848576\n");
  }
  ~DmemTree() override { std::filesystem::remove_all(root); }
  static void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  static std::string enabled(const std::string& directory) {
    return read_file(directory + "/cgroup.subtree_control").value_or("none");
  }
  std::string slice() const { return mount + "/kubepods.slice"; }
  std::string pod() const { return slice() + "/kubepods-pod1.slice"; }
  std::string container() const { return pod() + "/crio-1.scope"; }

  const std::string root = testing::TempDir() + "dmem." + std::to_string(::getpid());
  std::string mount = root + "/cgroup";
};

TEST_F(DmemTree, IsFoundByItsCapacity) {
  EXPECT_EQ(find_dmem_mount(mount), mount);
  EXPECT_TRUE(is_counted_by_dmem(mount, kDmemGpu));
  EXPECT_FALSE(is_counted_by_dmem(mount, {0, 0x42, 0, 0}));
  EXPECT_FALSE(is_counted_by_dmem("", kDmemGpu));
  std::filesystem::rename(mount, root + "/unified");
  EXPECT_EQ(find_dmem_mount(root), root + "/unified");
  EXPECT_EQ(find_dmem_mount(mount), "");
}

TEST_F(DmemTree, EnablesTheControllerDownToThePod) {
  write(slice() + "/cgroup.subtree_control", "cpu dmem memory\n");
  const auto enabled_there = enable_dmem(mount, container());
  ASSERT_TRUE(enabled_there) << enabled_there.error().full_message();
  EXPECT_EQ(enabled(mount).substr(0, 5), "+dmem");
  EXPECT_EQ(enabled(slice()), "cpu dmem memory\n") << "it has it";
  EXPECT_EQ(enabled(pod()).substr(0, 5), "+dmem");
  EXPECT_EQ(enabled(container()), "cpu memory\n") << "the container's own children are its own matter";
}

TEST_F(DmemTree, WritesNothingWhereTheRuntimeHasDoneIt) {
  write(container() + "/dmem.max", "nvidia/0000:41:00.0/vidmem max\n");
  EXPECT_TRUE(enable_dmem(mount, container()));
  EXPECT_EQ(enabled(mount), "cpu memory\n");
}

TEST_F(DmemTree, NamesTheFileThatRefuses) {
  std::filesystem::remove(pod() + "/cgroup.subtree_control");
  const auto refused = enable_dmem(mount, container());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().full_message().find(pod() + "/cgroup.subtree_control"), std::string::npos);
  EXPECT_EQ(enable_dmem(mount, "/elsewhere/x").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(enable_dmem("", container()).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(enable_dmem(mount, mount + "s/x").error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace gpulet::agent
