// Roots that mean ill, and the loader's cache as a source.
#include "cdi/driver_files.h"

#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include "base/file.h"
#include "cdi/driver_search.h"
#include "cdi/ld_cache.h"
#include "cdi/test_driver_root.h"

namespace gpulet::cdi {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string kVersion = "570.124.06";
const std::string kLib = "/usr/lib64";

std::string library(const std::string& stem) { return kLib + "/" + stem + ".so." + kVersion; }

void append(std::string& bytes, std::uint32_t word) { bytes.append(reinterpret_cast<const char*>(&word), 4); }

// A cache of format 1.1 of one name and one path, for this architecture.
std::string cache_of(const std::string& name, const std::string& path) {
#if defined(__aarch64__)
  constexpr std::uint32_t kFlags = 0x0A03;
#else
  constexpr std::uint32_t kFlags = 0x0303;
#endif
  std::string bytes = "glibc-ld.so.cache1.1";
  append(bytes, 1);
  bytes.resize(48);
  const std::uint32_t texts = 48 + 24;
  append(bytes, kFlags);
  append(bytes, texts);
  append(bytes, texts + static_cast<std::uint32_t>(name.size()) + 1);
  bytes.resize(texts);
  return bytes + name + '\0' + path + '\0';
}

TEST(DriverFilesTest, AHostileRootIsLookedAtAndNotOpened) {
  TestTree outside, tree;
  outside.file("/shadow", "secret");
  tree.file(library("libcuda"));
  tree.fifo(library("libfifo"));
  tree.link(library("libtofifo"), library("libfifo"));
  tree.link(library("libloop"), "libloop2");
  tree.link(kLib + "/libloop2", library("libloop"));
  tree.link(library("libout"), "../../../../../../../../.." + outside.path() + "/shadow");
  tree.link(library("libmagic"), "/proc/self/root" + outside.path() + "/shadow");
  tree.folder(library("libfolder"));
  tree.link("/usr/bin/nvidia-smi", outside.path() + "/shadow");
  tree.fifo("/etc/ld.so.cache");
  tree.fifo("/sys/module/firmware_class/parameters/path");
  tree.link("/etc/vulkan", "/etc/vulkan");
  tree.fifo("/run/nvidia-persistenced/socket");
  tree.link("/tmp/nvidia-mps", "/etc");
  const auto files = find_driver_files(tree.roots("/driver"), kVersion);
  ASSERT_TRUE(files.has_value()) << files.error().text();
  EXPECT_THAT(files->libraries, ElementsAre(FileMount{"/driver" + library("libcuda"), library("libcuda")}));
  EXPECT_THAT(files->binaries, IsEmpty());
  EXPECT_THAT(files->sockets, IsEmpty());
  EXPECT_THAT(files->configs, IsEmpty());
  for (const char* stem : {"libfifo", "libtofifo", "libloop", "libout", "libmagic", "libfolder"})
    EXPECT_THAT(files->warnings, Contains(HasSubstr("left out: " + library(stem))));
  EXPECT_THAT(files->warnings, Contains(HasSubstr("/tmp/nvidia-mps")));
}

TEST(DriverFilesTest, MpsPipesOfSomeUserAreNotHandedOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a folder to another user needs root";
  TestTree tree;
  tree.file(library("libcuda"));
  tree.folder("/tmp/nvidia-mps");
  ASSERT_EQ(::chown((tree.path() + "/tmp/nvidia-mps").c_str(), 1000, 1000), 0);
  EXPECT_THAT(find_driver_files(tree.roots(), kVersion)->sockets, IsEmpty());
}

TEST(DriverFilesTest, ALinkToALibraryThatIsTakenStaysALink) {
  TestTree tree;
  tree.file(library("libcuda"));
  tree.link(library("libnvcuda"), "libcuda.so." + kVersion);
  const auto files = find_driver_files(tree.roots(), kVersion);
  ASSERT_TRUE(files.has_value());
  EXPECT_EQ(files->libraries.size(), 1u);
  EXPECT_THAT(files->links, Contains(Link{"libcuda.so." + kVersion, library("libnvcuda")}));
}

TEST(DriverFilesTest, TheLoadersCacheLeadsToAnUnusualFolder) {
  TestTree tree;
  tree.file("/opt/nvidia-current/libcuda.so." + kVersion);
  tree.link("/opt/nvidia-current/libcuda.so.1", "libcuda.so." + kVersion);
  tree.file("/etc/ld.so.cache", cache_of("libcuda.so.1", "/opt/nvidia-current/libcuda.so.1"));
  const auto files = find_driver_files(tree.roots(), "");
  ASSERT_TRUE(files.has_value()) << files.error().text();
  EXPECT_THAT(files->cuda_library_dirs, ElementsAre("/opt/nvidia-current"));
  EXPECT_EQ(files->version, kVersion);
}

TEST(DriverFilesTest, ABrokenCacheIsPassedOver) {
  TestTree tree;
  tree.file("/etc/ld.so.cache", "glibc-ld.so.cache1.1 and no more");
  tree.file("/usr/lib/libcuda.so." + kVersion);
  const auto files = find_driver_files(tree.roots(), kVersion);
  ASSERT_TRUE(files.has_value());
  EXPECT_THAT(files->warnings, Contains(HasSubstr("/etc/ld.so.cache")));
}

TEST(LdCacheTest, ThisMachinesOwn) {
  const auto bytes = read_file("/etc/ld.so.cache");
  if (!bytes) GTEST_SKIP() << "this machine has no ld.so.cache: " << bytes.error().text();
  const auto entries = parse_ld_cache(*bytes);
  ASSERT_TRUE(entries.has_value()) << entries.error().text();
  const auto libc = std::ranges::find(*entries, "libc.so.6", &LdCacheEntry::name);
  ASSERT_NE(libc, entries->end());
  EXPECT_EQ(::access(std::string(libc->path).c_str(), R_OK), 0) << libc->path;
}

TEST(LdCacheTest, BehindTheOlderFormat) {
  std::string old = "ld.so-1.7.0";
  old.resize(12);
  append(old, 1);
  old.resize(32);  // header, one entry, and up to a multiple of eight
  const std::string bytes = old + cache_of("liba.so.1", "/lib/liba.so.1");
  const auto entries = parse_ld_cache(bytes);
  ASSERT_TRUE(entries.has_value()) << entries.error().text();
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ(entries->front().path, "/lib/liba.so.1");
}

RC_GTEST_PROP(LdCacheTest, DamageIsAnErrorOrHarmless, ()) {
  std::string bytes = cache_of("libcuda.so.1", "/usr/lib64/libcuda.so.1");
  const auto at = *rc::gen::inRange<std::size_t>(0, bytes.size());
  bytes[at] = *rc::gen::arbitrary<char>();
  bytes.resize(*rc::gen::inRange<std::size_t>(at, bytes.size() + 1));
  const auto entries = parse_ld_cache(bytes);
  if (!entries) return;
  for (const LdCacheEntry& entry : *entries) {
    RC_ASSERT(entry.path.data() >= bytes.data());
    RC_ASSERT(entry.path.data() + entry.path.size() < bytes.data() + bytes.size());
  }
}

}  // namespace
}  // namespace gpulet::cdi
