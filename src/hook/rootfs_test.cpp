#include "hook/rootfs.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;

Rootfs open(const TestImage& image) {
  auto root = Rootfs::open(image.root());
  if (!root) std::abort();
  return std::move(*root);
}

TEST(Rootfs, TheHostsRootIsRefusedByAnyName) {
  for (const char* path : {"", "/", "//", "/.", "/..", "/tmp/..", "/proc/self/root", "relative", "."})
    EXPECT_EQ(Rootfs::open(path).error().code(), Code::kInvalidArgument) << path;
  EXPECT_EQ(Rootfs::open("/nonexistent").error().code(), Code::kNotFound);
}

TEST(Rootfs, PathsAreSplit) {
  EXPECT_EQ(split_path("/a/b/c")->folder, "/a/b");
  EXPECT_EQ(split_path("/a")->folder, "/");
  EXPECT_EQ(split_path("a")->name, "a");
  for (const std::string& path :
       {std::string(), std::string("/"), std::string("a/"), std::string("a/."), std::string("a/.."),
        std::string("a\0b", 3), std::string(5000, 'a'), std::string(300, 'a')})
    EXPECT_FALSE(split_path(path)) << path;
}

TEST(Rootfs, FilesAreReplacedWhole) {
  const TestImage image;
  const Rootfs root = open(image);
  ASSERT_TRUE(root.write_file("/etc/a/b", "one", 0444));
  ASSERT_TRUE(root.write_file("etc/a/b", "two", 0644));
  EXPECT_EQ(image.read("etc/a/b"), "two");
  EXPECT_EQ(root.read("/etc/../etc/a/b", 3).value(), "two");
  EXPECT_EQ(root.read("/etc/a/b", 2).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(root.read("/etc/a", 100).error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(root.read("/etc/c", 100).error().code(), Code::kNotFound);
  EXPECT_EQ(root.write_file("/etc/a", "x").error().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(root.remove_file("/etc/a/b"));
  EXPECT_TRUE(root.remove_file("/etc/a/b"));
  EXPECT_TRUE(root.remove_file("/none/at/all"));
  EXPECT_THAT(image.left_overs(), ElementsAre());
}

TEST(Rootfs, ListsWithACap) {
  const TestImage image;
  for (const char* name : {"d/c", "d/a", "d/b"}) image.file(name);
  const Rootfs root = open(image);
  EXPECT_THAT(root.list("/d", 3).value(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(root.list("/d", 2).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(root.list("/d/a", 2).error().code(), Code::kNotFound);
}

TEST(Rootfs, FilesAreNeverMadeByOpening) {
  const TestImage image;
  EXPECT_EQ(open(image).open_inside("/x", O_CREAT | O_WRONLY).error().code(), Code::kInternal);
}

// Any tree of folders, files and links, and any use of it: nothing outside changes, and nothing outside is
// read.
TEST(Rootfs, NoImageLeadsOut) {
  rc::check([] {
    const TestImage image;
    const std::string host = image.outside();
    const auto name = rc::gen::element<std::string>("a", "b", "c", "secret", "folder");
    const auto part = rc::gen::element<std::string>("a", "b", "c", "..", ".", "secret", "folder");
    const auto join = [](const std::vector<std::string>& parts) {
      std::string path;
      for (const auto& p : parts) path += "/" + p;
      return path.empty() ? std::string("/") : path;
    };
    const auto path = rc::gen::map(rc::gen::container<std::vector<std::string>>(part), join);
    const auto target =
        rc::gen::oneOf(path, rc::gen::just(host), rc::gen::just(host + "/secret"),
                       rc::gen::just(std::string("../../../outside")), rc::gen::just(std::string("..")),
                       rc::gen::just(std::string("/")), rc::gen::just(std::string("/proc/self/root") + host));
    const auto entries =
        *rc::gen::container<std::vector<std::tuple<std::string, std::string, int, std::string>>>(
            rc::gen::tuple(name, name, rc::gen::inRange(0, 3), target));
    for (const auto& [first, second, kind, to] : entries) {
      const auto place = image.root() / first / second;
      std::error_code ignored;
      if (!std::filesystem::is_symlink(image.root() / first)) {
        std::filesystem::create_directories(place.parent_path(), ignored);
        if (kind == 0) std::filesystem::create_directory(place, ignored);
        if (kind == 1) std::filesystem::create_symlink(to, place, ignored);
      }
      if (kind == 2) std::filesystem::create_symlink(to, image.root() / first, ignored);
    }
    RC_ASSERT(image.outside_is_untouched());
    const Rootfs root = open(image);
    for (const auto& use : *rc::gen::container<std::vector<std::string>>(path)) {
      const auto content = root.read(use + "/secret", 1000);
      const bool leaked = content && *content == "the host's";
      RC_ASSERT(!leaked);
      static_cast<void>(root.write_file(use, "x"));
      static_cast<void>(root.make_link("/somewhere", use + "/x"));
      static_cast<void>(root.remove_file(use + "/secret"));
      static_cast<void>(root.make_folders(use + "/new"));
      static_cast<void>(root.list(use, 100));
    }
    RC_ASSERT(image.outside_is_untouched());
    RC_ASSERT(image.left_overs().empty());
  });
}

}  // namespace
}  // namespace gpulet::hook
