#include "hook/rootfs.h"

#include <gmock/gmock.h>
#include <rapidcheck.h>

#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;

Rootfs open_image(const TestImage& image) {
  auto root = Rootfs::open_root(image.root_directory());
  if (!root) std::abort();
  return std::move(*root);
}

TEST(Rootfs, RefusesTheHostsRootByAnyName) {
  for (const char* path : {"", "/", "//", "/.", "/..", "/tmp/..", "/proc/self/root", "relative", "."})
    EXPECT_EQ(Rootfs::open_root(path).error().code(), Code::kInvalidArgument) << path;
  EXPECT_EQ(Rootfs::open_root("/nonexistent").error().code(), Code::kNotFound);
}

TEST(Rootfs, SplitsPaths) {
  EXPECT_EQ(split_path("/a/b/c")->directory, "/a/b");
  EXPECT_EQ(split_path("/a")->directory, "/");
  EXPECT_EQ(split_path("a")->name, "a");
  for (const std::string& path :
       {std::string(), std::string("/"), std::string("a/"), std::string("a/."), std::string("a/.."),
        std::string("a\0b", 3), std::string(5000, 'a'), std::string(300, 'a')})
    EXPECT_FALSE(split_path(path)) << path;
}

TEST(Rootfs, ReplacesFilesAtomically) {
  const TestImage image;
  const Rootfs root = open_image(image);
  ASSERT_TRUE(root.write_file("/etc/a/b", "one", 0444));
  ASSERT_TRUE(root.write_file("etc/a/b", "two", 0644));
  EXPECT_EQ(image.read_text("etc/a/b"), "two");
  EXPECT_EQ(root.read_file("/etc/../etc/a/b", 3).value(), "two");
  EXPECT_EQ(root.read_file("/etc/a/b", 2).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(root.read_file("/etc/a", 100).error().code(), Code::kFailedPrecondition);
  EXPECT_EQ(root.read_file("/etc/c", 100).error().code(), Code::kNotFound);
  EXPECT_EQ(root.write_file("/etc/a", "x").error().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(root.remove_file("/etc/a/b"));
  EXPECT_TRUE(root.remove_file("/etc/a/b"));
  EXPECT_TRUE(root.remove_file("/none/at/all"));
  EXPECT_THAT(image.leftover_files(), ElementsAre());
}

TEST(Rootfs, LimitsListings) {
  const TestImage image;
  for (const char* name : {"d/c", "d/a", "d/b"}) image.add_file(name);
  const Rootfs root = open_image(image);
  EXPECT_THAT(root.list_directory("/d", 3).value(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(root.list_directory("/d", 2).error().code(), Code::kInvalidArgument);
  EXPECT_EQ(root.list_directory("/d/a", 2).error().code(), Code::kNotFound);
}

TEST(Rootfs, DoesNotCreateFilesByOpening) {
  const TestImage image;
  EXPECT_EQ(open_image(image).open_inside("/x", O_CREAT | O_WRONLY).error().code(), Code::kInternal);
}

// For any tree of directories, files and links and any operation, nothing outside is changed or read.
TEST(Rootfs, NoImageEscapesTheRoot) {
  rc::check([] {
    const TestImage image;
    const std::string host = image.outside_directory();
    const auto name = rc::gen::element<std::string>("a", "b", "c", "secret", "directory");
    const auto part = rc::gen::element<std::string>("a", "b", "c", "..", ".", "secret", "directory");
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
      const auto place = image.root_directory() / first / second;
      std::error_code ignored;
      if (!std::filesystem::is_symlink(image.root_directory() / first)) {
        std::filesystem::create_directories(place.parent_path(), ignored);
        if (kind == 0) std::filesystem::create_directory(place, ignored);
        if (kind == 1) std::filesystem::create_symlink(to, place, ignored);
      }
      if (kind == 2) std::filesystem::create_symlink(to, image.root_directory() / first, ignored);
    }
    RC_ASSERT(image.outside_is_untouched());
    const Rootfs root = open_image(image);
    for (const auto& use : *rc::gen::container<std::vector<std::string>>(path)) {
      const auto content = root.read_file(use + "/secret", 1000);
      const bool leaked = content && *content == "the host's";
      RC_ASSERT(!leaked);
      static_cast<void>(root.write_file(use, "x"));
      static_cast<void>(root.make_symlink("/somewhere", use + "/x"));
      static_cast<void>(root.remove_file(use + "/secret"));
      static_cast<void>(root.make_directories(use + "/new"));
      static_cast<void>(root.list_directory(use, 100));
    }
    RC_ASSERT(image.outside_is_untouched());
    RC_ASSERT(image.leftover_files().empty());
  });
}

}  // namespace
}  // namespace gpulet::hook
