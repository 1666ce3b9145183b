#include "hook/ld_conf.h"

#include <gmock/gmock.h>

#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result<std::vector<LdFolder>> read(const TestImage& image) {
  const auto root = Rootfs::open(image.root());
  if (!root) return fail(root.error());
  return read_ld_config(*root);
}

std::vector<std::string> folders(const TestImage& image) {
  const auto all = read(image);
  if (!all) return {all.error().text()};
  std::vector<std::string> paths;
  for (const auto& folder : *all) paths.push_back(folder.path);
  return paths;
}

TEST(LdConf, LinesAsLdconfigReadsThem) {
  const TestImage image;
  EXPECT_THAT(folders(image), IsEmpty());
  image.file("etc/ld.so.conf",
             "# a comment\n  /a  # another\n\n/b=libc5\nhwcap 0 nosegneg\nrelative\n/a\n/c//d/./\n"
             "\tinclude\t/etc/more/*.conf   /etc/last\nincluded\n/e with blank");
  image.file("etc/more/2.conf", "/two");
  image.file("etc/more/1.conf", "/one\r\n/a\r\n");
  image.file("etc/more/.hidden.conf", "/hidden");
  image.file("etc/more/3.confx", "/three");
  image.file("etc/last", "/last\ninclude more/?.confx");
  EXPECT_THAT(folders(image),
              ElementsAre("/a", "/b", "/c/d", "/one", "/two", "/last", "/three", "/e with blank"));
  const auto all = read(image);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ((*all)[3], (LdFolder{"/one", "/etc/more/1.conf"}));
}

TEST(LdConf, PatternsOfFolders) {
  const TestImage image;
  image.file("etc/ld.so.conf", "include /opt/*/etc/x*.conf");
  image.file("opt/b/etc/x.conf", "/b");
  image.file("opt/a/etc/xyz.conf", "/a");
  image.file("opt/a/etc/y.conf", "/y");
  image.file("opt/file", "no folder");
  EXPECT_THAT(folders(image), ElementsAre("/a", "/b"));
}

TEST(LdConf, WhatIsNoFileIsPassedOver) {
  const TestImage image;
  image.file("etc/ld.so.conf", "include /etc/*.conf /none /etc\n/after");
  image.fifo("etc/fifo.conf");
  image.link(image.outside() / "secret", "etc/out.conf");
  image.link("loop.conf", "etc/loop.conf");
  image.file("etc/nul.conf", std::string("/x\0y\n/z", 7));
  EXPECT_THAT(folders(image), ElementsAre("/z", "/after"));
}

TEST(LdConf, Limits) {
  const TestImage many;
  std::string lines;
  for (std::size_t i = 0; i <= kMaxLdFolders; ++i) lines += "/f" + std::to_string(i) + "\n";
  many.file("etc/ld.so.conf", lines);
  EXPECT_THAT(folders(many), ElementsAre(HasSubstr("names more than 1024 folders")));
  const TestImage large;
  large.file("etc/ld.so.conf", std::string(kMaxLdConfigBytes + 1, '#'));
  EXPECT_THAT(folders(large), ElementsAre(HasSubstr("larger than the limit")));
  const TestImage files;
  files.file("etc/ld.so.conf", "include d/*");
  for (std::size_t i = 0; i <= kMaxLdConfigFiles; ++i) files.file("etc/d/f" + std::to_string(i));
  EXPECT_THAT(folders(files), ElementsAre(HasSubstr("leads to more than 1024 files")));
  const TestImage wide;
  wide.file("etc/ld.so.conf", "include /d/*/*/*/*\n");
  for (int i = 0; i < 40; ++i)
    for (int j = 0; j < 40; ++j) wide.folder("d/" + std::to_string(i) + "/" + std::to_string(j));
  EXPECT_THAT(folders(wide), ElementsAre(HasSubstr("too many folders")));
}

TEST(LdConf, PatternsAreLinear) {
  EXPECT_TRUE(matches_pattern("*.conf", "a.conf"));
  EXPECT_TRUE(matches_pattern("a*b*c", "axxbxxbc"));
  EXPECT_TRUE(matches_pattern("*", "x"));
  EXPECT_TRUE(matches_pattern("??", "xy"));
  EXPECT_TRUE(matches_pattern(".*", ".x"));
  EXPECT_FALSE(matches_pattern("*.conf", ".conf"));
  EXPECT_FALSE(matches_pattern("*.conf", "a.conf~"));
  EXPECT_FALSE(matches_pattern("?", ""));
  EXPECT_FALSE(matches_pattern("a", "A"));
  std::string pattern;
  for (int i = 0; i < 2000; ++i) pattern += "a*";
  EXPECT_FALSE(matches_pattern(pattern + "b", std::string(255, 'a')));
}

}  // namespace
}  // namespace gpulet::hook
