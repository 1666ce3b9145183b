#include "cdi/root.h"

#include <gmock/gmock.h>

#include "cdi/test_driver_root.h"

namespace gpulet::cdi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Root open_or_fail(const TestTree& tree, const std::string& host_path = {}) {
  auto root = Root::open_root(tree.tree_path(), host_path);
  EXPECT_TRUE(root.has_value());
  return std::move(*root);
}

TEST(RootTest, ResolvesAbsoluteLinksInside) {
  TestTree tree;
  tree.make_file("/usr/lib/x86/current/libcuda.so.1.2");
  tree.make_link("/etc/alternatives/libcuda", "/usr/lib/x86/current/libcuda.so.1.2");
  tree.make_link("/usr/lib/libcuda.so.1", "/etc/alternatives/libcuda");
  tree.make_link("/lib", "usr/lib");
  const Root root = open_or_fail(tree);
  EXPECT_EQ(root.resolve_path("/lib/libcuda.so.1").value(), "/usr/lib/x86/current/libcuda.so.1.2");
  EXPECT_EQ(root.resolve_path("/usr//lib/./x86/../x86").value(), "/usr/lib/x86");
  EXPECT_EQ(root.resolve_path("/").value(), "/");
  EXPECT_EQ(root.read_link("/usr/lib/libcuda.so.1").value(), "/etc/alternatives/libcuda");
  EXPECT_EQ(root.link_status("/lib").value().type, FileType::kLink);
  EXPECT_EQ(root.file_status("/lib").value().type, FileType::kDirectory);
  EXPECT_EQ(root.resolve_with_status("/lib/libcuda.so.1").value().status.type, FileType::kRegular);
  EXPECT_EQ(root.read_regular_file("/lib/libcuda.so.1").value(), "x");
}

TEST(RootTest, ConfinesLinks) {
  TestTree outside, tree;
  outside.make_file("/secret", "s");
  tree.make_link("/up", "../../../../../../../.." + outside.tree_path() + "/secret");
  tree.make_link("/absolute", outside.tree_path() + "/secret");
  tree.make_link("/magic", "/proc/self/root" + outside.tree_path() + "/secret");
  tree.make_link("/loop", "loop2");
  tree.make_link("/loop2", "/loop");
  const Root root = open_or_fail(tree);
  for (const char* name : {"/up", "/absolute", "/magic"}) {
    EXPECT_EQ(root.resolve_path(name).error().code(), Code::kNotFound) << name;
    EXPECT_FALSE(root.read_regular_file(name).has_value()) << name;
    EXPECT_FALSE(root.exists(name)) << name;
  }
  EXPECT_EQ(root.resolve_path("/loop").error().code(), Code::kIo);
  EXPECT_EQ(root.resolve_path("/../../..").value(), "/") << "the root is its own parent";
}

TEST(RootTest, DoesNotBlockOnAFifo) {
  TestTree tree;
  tree.make_fifo("/fifo");
  tree.make_link("/to-fifo", "/fifo");
  const Root root = open_or_fail(tree);
  EXPECT_EQ(root.read_regular_file("/to-fifo").error().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(root.list_directory("/fifo").has_value());
  EXPECT_EQ(root.file_status("/fifo").value().type, FileType::kOther);
}

TEST(RootTest, PathsOnTheHost) {
  TestTree tree;
  const Root driver = open_or_fail(tree, "/run/nvidia/driver/");
  EXPECT_EQ(driver.on_host("/usr/bin/x"), "/run/nvidia/driver/usr/bin/x");
  EXPECT_EQ(driver.on_host("/"), "/run/nvidia/driver");
  EXPECT_EQ(driver.from_host("/run/nvidia/driver/lib").value(), "/lib");
  EXPECT_EQ(driver.from_host("/run/nvidia/driver").value(), "/");
  EXPECT_FALSE(driver.from_host("/run/nvidia/driver2/lib"));
  const Root host = open_or_fail(tree, "/");
  EXPECT_EQ(host.on_host("/usr/bin/x"), "/usr/bin/x");
  EXPECT_EQ(host.from_host("/usr/bin/x").value(), "/usr/bin/x");
  EXPECT_EQ(open_or_fail(tree).on_host("/a"), tree.tree_path() + "/a");
  EXPECT_EQ(Root::open_root("relative").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Root::open_root(tree.tree_path() + "/none").error().code(), Code::kNotFound);
}

TEST(RootTest, OpensALinkOrTheHostsRoot) {
  TestTree tree;
  tree.make_file("/real/usr/lib/a");
  tree.make_link("/real/lib", "/usr/lib");
  tree.make_link("/alias", "real");
  auto root = Root::open_root(tree.tree_path() + "/alias");
  ASSERT_TRUE(root.has_value());
  EXPECT_EQ(root->resolve_path("/lib/a").value(), "/usr/lib/a");
  EXPECT_EQ(root->on_host("/lib/a"), tree.tree_path() + "/alias/lib/a");
  auto machine = Root::open_root("/");
  ASSERT_TRUE(machine.has_value());
  EXPECT_EQ(machine->resolve_path(tree.tree_path() + "/alias/lib").value(),
            machine->resolve_path("/usr/lib").value())
      << "the link is absolute, and this root is the machine's";
  EXPECT_EQ(machine->resolve_path(tree.tree_path() + "/alias").value(), tree.tree_path() + "/real");
}

TEST(RootTest, ListsAndGlobs) {
  TestTree tree;
  for (const char* name : {"nvidia0", "nvidia10", "nvidia-fs1", "nvidia-fs0", "zero"})
    tree.make_file(std::string("/dev/") + name);
  tree.make_directory("/dev/nvidia-caps");
  const Root root = open_or_fail(tree);
  EXPECT_THAT(root.glob("/dev/nvidia-fs*"), ElementsAre("/dev/nvidia-fs0", "/dev/nvidia-fs1"));
  EXPECT_THAT(root.glob("/dev/*0"), ElementsAre("/dev/nvidia-fs0", "/dev/nvidia0", "/dev/nvidia10"));
  EXPECT_THAT(root.glob("/none/*"), IsEmpty());
  const auto dev = root.list_directory("/dev");
  ASSERT_TRUE(dev.has_value());
  EXPECT_EQ(dev->size(), 6u);
  EXPECT_EQ(dev->entry(0).name, "nvidia-caps");
  EXPECT_EQ(dev->entry(0).type, FileType::kDirectory);
  EXPECT_EQ(dev->with_prefix("nvidia-").second, 3u);
  EXPECT_EQ(dev->with_prefix("nvidia-g"), (std::pair<std::size_t, std::size_t>(3, 3)));
  EXPECT_TRUE(dev->contains_entry("zero"));
  EXPECT_FALSE(dev->contains_entry("zer"));
}

TEST(RootTest, ListsALargeDirectory) {
  TestTree tree;
  for (int index = 0; index < 3000; ++index) tree.make_link("/many/name-" + std::to_string(index), "nowhere");
  const auto many = open_or_fail(tree).list_directory("/many");
  ASSERT_TRUE(many.has_value());
  EXPECT_EQ(many->size(), 3000u);
  EXPECT_EQ(many->type_of("name-2999"), FileType::kLink);
}

TEST(RootTest, Patterns) {
  EXPECT_TRUE(matches_glob("libnvidia-egl-gbm.so.*.*", "libnvidia-egl-gbm.so.1.1.0"));
  EXPECT_FALSE(matches_glob("libnvidia-egl-gbm.so.*.*", "libnvidia-egl-gbm.so.1"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_TRUE(matches_glob("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches_glob("a*b*c", "aXbYbZ"));
  EXPECT_FALSE(matches_glob("", "a"));
  // Many stars over a long run still return quickly.
  EXPECT_FALSE(matches_glob("*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
  EXPECT_EQ(normalize_path("//a/./b/../../../c/"), "/c");
  EXPECT_EQ(normalize_path(""), "/");
}

TEST(RootTest, ListsADirectoryOnceUnderAnyName) {
  TestTree tree;
  tree.make_file("/usr/lib64/libcuda.so");
  tree.make_link("/lib64", "/usr/lib64");
  tree.make_fifo("/usr/fifo");
  const Root root = open_or_fail(tree);
  DirectoryCache directories(root);
  const Directory* real = directories.get("/usr/lib64");
  ASSERT_NE(real, nullptr);
  EXPECT_EQ(directories.get("/lib64"), real);
  EXPECT_EQ(directories.get("/usr/lib64/xorg/modules"), nullptr);
  tree.make_directory("/usr/lib64/xorg");
  EXPECT_EQ(directories.get("/usr/lib64/xorg"), nullptr) << "the existing listing rules it out";
  EXPECT_THAT(directories.problems(), IsEmpty());
  EXPECT_EQ(directories.get("/usr/fifo"), nullptr);
  EXPECT_THAT(directories.problems(), IsEmpty()) << "a file counts as a missing directory";
}

TEST(RootTest, TheDevRootFollowsTheDriverRoot) {
  TestTree tree;
  auto without = open_roots({tree.tree_path()});
  ASSERT_TRUE(without.has_value());
  EXPECT_EQ(without->dev.root_path(), "/");
  tree.make_file("/dev/nvidiactl");
  auto with = open_roots({tree.tree_path(), "/run/nvidia/driver"});
  ASSERT_TRUE(with.has_value());
  EXPECT_EQ(with->dev.root_path(), tree.tree_path());
  EXPECT_EQ(with->dev.on_host("/dev/nvidia0"), "/run/nvidia/driver/dev/nvidia0");
  EXPECT_EQ(with->proc.root_path(), "/proc");
}

}  // namespace
}  // namespace gpulet::cdi
