#include "base/ld_cache.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/test_ld_cache.h"

namespace gpulet {
namespace {

using test::append_word;
using test::cache_of;

TEST(LdCacheTest, ReadsThisMachinesOwn) {
  const auto bytes = read_file("/etc/ld.so.cache");
  if (!bytes) GTEST_SKIP() << "this machine has no ld.so.cache: " << bytes.error().full_message();
  const auto entries = parse_ld_cache(*bytes);
  ASSERT_TRUE(entries.has_value()) << entries.error().full_message();
  const auto libc = std::ranges::find(*entries, "libc.so.6", &LdCacheEntry::name);
  ASSERT_NE(libc, entries->end());
  EXPECT_EQ(::access(std::string(libc->path).c_str(), R_OK), 0) << libc->path;
}

TEST(LdCacheTest, ReadsTheFormatBehindTheOlderOne) {
  std::string old = "ld.so-1.7.0";
  old.resize(12);
  append_word(old, 1);
  old.resize(32);  // header, one entry, aligned to eight
  const std::string bytes = old + cache_of("liba.so.1", "/lib/liba.so.1");
  const auto entries = parse_ld_cache(bytes);
  ASSERT_TRUE(entries.has_value()) << entries.error().full_message();
  ASSERT_EQ(entries->size(), 1u);
  EXPECT_EQ(entries->front().path, "/lib/liba.so.1");
}

TEST(LdCacheTest, FindsTheLibraryInTheCachesOfARoot) {
  std::string directory = testing::TempDir() + "ld_cache.XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const auto root = RootDirectory::open_root(directory);
  ASSERT_TRUE(root);
  EXPECT_TRUE(find_in_ld_caches(*root, "libcuda.so.1").empty());
  std::filesystem::create_directories(directory + "/etc");
  std::filesystem::create_directories(directory + "/usr/local/glibc/etc");
  ASSERT_EQ(::mkfifo((directory + "/etc/ld.so.cache").c_str(), 0600), 0);
  ASSERT_TRUE(write_file_atomic(directory + "/usr/local/glibc/etc/ld.so.cache",
                                cache_of("libcuda.so.1", "/opt/libcuda.so.1")));
  EXPECT_EQ(find_in_ld_caches(*root, "libcuda.so.1"), std::vector<std::string>{"/opt/libcuda.so.1"});
  EXPECT_TRUE(find_in_ld_caches(*root, "libcuda.so").empty());
  std::filesystem::remove_all(directory);
}

RC_GTEST_PROP(LdCacheTest, SurvivesDamage, ()) {
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
}  // namespace gpulet
