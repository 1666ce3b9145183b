// Hostile roots, and the loader's cache as a source.
#include "cdi/driver_files.h"

#include <gmock/gmock.h>

#include "base/test_ld_cache.h"
#include "cdi/driver_search.h"
#include "cdi/test_driver_root.h"

namespace gpulet::cdi {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kVersion = "570.124.06";
using test::cache_of;

const std::string kLib = "/usr/lib64";

std::string library(const std::string& stem) { return kLib + "/" + stem + ".so." + kVersion; }

TEST(DriverFilesTest, OpensNothingInAHostileRoot) {
  TestTree outside, tree;
  outside.make_file("/shadow", "secret");
  tree.make_file(library("libcuda"));
  tree.make_fifo(library("libfifo"));
  tree.make_link(library("libtofifo"), library("libfifo"));
  tree.make_link(library("libloop"), "libloop2");
  tree.make_link(kLib + "/libloop2", library("libloop"));
  tree.make_link(library("libout"), "../../../../../../../../.." + outside.tree_path() + "/shadow");
  tree.make_link(library("libmagic"), "/proc/self/root" + outside.tree_path() + "/shadow");
  tree.make_directory(library("libdirectory"));
  tree.make_link("/usr/bin/nvidia-smi", outside.tree_path() + "/shadow");
  tree.make_fifo("/etc/ld.so.cache");
  tree.make_fifo("/sys/module/firmware_class/parameters/path");
  tree.make_link("/etc/vulkan", "/etc/vulkan");
  tree.make_fifo("/run/nvidia-persistenced/socket");
  tree.make_link("/tmp/nvidia-mps", "/etc");
  const auto files = find_driver_files(tree.open_tree("/driver"), kVersion);
  ASSERT_TRUE(files.has_value()) << files.error().full_message();
  EXPECT_THAT(files->libraries, ElementsAre(FileMount{"/driver" + library("libcuda"), library("libcuda")}));
  EXPECT_THAT(files->binaries, IsEmpty());
  EXPECT_THAT(files->sockets, IsEmpty());
  EXPECT_THAT(files->configs, IsEmpty());
  for (const char* stem : {"libfifo", "libtofifo", "libloop", "libout", "libmagic", "libdirectory"})
    EXPECT_THAT(files->warnings, Contains(HasSubstr("left out: " + library(stem))));
  EXPECT_THAT(files->warnings, Contains(HasSubstr("/tmp/nvidia-mps")));
}

TEST(DriverFilesTest, SkipsMpsPipesOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "changing a directory's owner needs root";
  TestTree tree;
  tree.make_file(library("libcuda"));
  tree.make_directory("/tmp/nvidia-mps");
  ASSERT_EQ(::chown((tree.tree_path() + "/tmp/nvidia-mps").c_str(), 1000, 1000), 0);
  EXPECT_THAT(find_driver_files(tree.open_tree(), kVersion)->sockets, IsEmpty());
}

TEST(DriverFilesTest, KeepsALinkToAMountedLibraryALink) {
  TestTree tree;
  tree.make_file(library("libcuda"));
  tree.make_link(library("libnvcuda"), "libcuda.so." + kVersion);
  const auto files = find_driver_files(tree.open_tree(), kVersion);
  ASSERT_TRUE(files.has_value());
  EXPECT_EQ(files->libraries.size(), 1u);
  EXPECT_THAT(files->links, Contains(Link{"libcuda.so." + kVersion, library("libnvcuda")}));
}

TEST(DriverFilesTest, FindsADirectoryByTheLoadersCache) {
  TestTree tree;
  tree.make_file("/opt/nvidia-current/libcuda.so." + kVersion);
  tree.make_link("/opt/nvidia-current/libcuda.so.1", "libcuda.so." + kVersion);
  tree.make_file("/etc/ld.so.cache", cache_of("libcuda.so.1", "/opt/nvidia-current/libcuda.so.1"));
  const auto files = find_driver_files(tree.open_tree(), "");
  ASSERT_TRUE(files.has_value()) << files.error().full_message();
  EXPECT_THAT(files->cuda_library_dirs, ElementsAre("/opt/nvidia-current"));
  EXPECT_EQ(files->version, kVersion);
}

TEST(DriverFilesTest, SkipsABrokenCache) {
  TestTree tree;
  tree.make_file("/etc/ld.so.cache", "glibc-ld.so.cache1.1 and no more");
  tree.make_file("/usr/lib/libcuda.so." + kVersion);
  const auto files = find_driver_files(tree.open_tree(), kVersion);
  ASSERT_TRUE(files.has_value());
  EXPECT_THAT(files->warnings, Contains(HasSubstr("/etc/ld.so.cache")));
}

}  // namespace
}  // namespace gpulet::cdi
