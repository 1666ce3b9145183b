#include "cdi/root.h"

#include <gmock/gmock.h>

#include "cdi/folders.h"
#include "cdi/test_driver_root.h"

namespace gpulet::cdi {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Root opened(const TestTree& tree, const std::string& host_path = {}) {
  auto root = Root::open(tree.path(), host_path);
  EXPECT_TRUE(root.has_value());
  return std::move(*root);
}

TEST(RootTest, AbsoluteLinksStayInside) {
  TestTree tree;
  tree.file("/usr/lib/x86/current/libcuda.so.1.2");
  tree.link("/etc/alternatives/libcuda", "/usr/lib/x86/current/libcuda.so.1.2");
  tree.link("/usr/lib/libcuda.so.1", "/etc/alternatives/libcuda");
  tree.link("/lib", "usr/lib");
  const Root root = opened(tree);
  EXPECT_EQ(root.resolve("/lib/libcuda.so.1").value(), "/usr/lib/x86/current/libcuda.so.1.2");
  EXPECT_EQ(root.resolve("/usr//lib/./x86/../x86").value(), "/usr/lib/x86");
  EXPECT_EQ(root.resolve("/").value(), "/");
  EXPECT_EQ(root.read_link("/usr/lib/libcuda.so.1").value(), "/etc/alternatives/libcuda");
  EXPECT_EQ(root.link_status("/lib").value().type, FileType::kLink);
  EXPECT_EQ(root.status("/lib").value().type, FileType::kFolder);
  EXPECT_EQ(root.look("/lib/libcuda.so.1").value().status.type, FileType::kRegular);
  EXPECT_EQ(root.read("/lib/libcuda.so.1").value(), "x");
}

TEST(RootTest, NoLinkLeadsOut) {
  TestTree outside, tree;
  outside.file("/secret", "s");
  tree.link("/up", "../../../../../../../.." + outside.path() + "/secret");
  tree.link("/absolute", outside.path() + "/secret");
  tree.link("/magic", "/proc/self/root" + outside.path() + "/secret");
  tree.link("/loop", "loop2");
  tree.link("/loop2", "/loop");
  const Root root = opened(tree);
  for (const char* name : {"/up", "/absolute", "/magic"}) {
    EXPECT_EQ(root.resolve(name).error().code(), Code::kNotFound) << name;
    EXPECT_FALSE(root.read(name).has_value()) << name;
    EXPECT_FALSE(root.exists(name)) << name;
  }
  EXPECT_EQ(root.resolve("/loop").error().code(), Code::kIo);
  EXPECT_EQ(root.resolve("/../../..").value(), "/") << "the root is its own parent";
}

TEST(RootTest, AFifoIsNeitherReadNorWaitedFor) {
  TestTree tree;
  tree.fifo("/fifo");
  tree.link("/to-fifo", "/fifo");
  const Root root = opened(tree);
  EXPECT_EQ(root.read("/to-fifo").error().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(root.list("/fifo").has_value());
  EXPECT_EQ(root.status("/fifo").value().type, FileType::kOther);
}

TEST(RootTest, PathsOnTheHost) {
  TestTree tree;
  const Root driver = opened(tree, "/run/nvidia/driver/");
  EXPECT_EQ(driver.on_host("/usr/bin/x"), "/run/nvidia/driver/usr/bin/x");
  EXPECT_EQ(driver.on_host("/"), "/run/nvidia/driver");
  EXPECT_EQ(driver.from_host("/run/nvidia/driver/lib").value(), "/lib");
  EXPECT_EQ(driver.from_host("/run/nvidia/driver").value(), "/");
  EXPECT_FALSE(driver.from_host("/run/nvidia/driver2/lib"));
  const Root host = opened(tree, "/");
  EXPECT_EQ(host.on_host("/usr/bin/x"), "/usr/bin/x");
  EXPECT_EQ(host.from_host("/usr/bin/x").value(), "/usr/bin/x");
  EXPECT_EQ(opened(tree).on_host("/a"), tree.path() + "/a");
  EXPECT_EQ(Root::open("relative").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(Root::open(tree.path() + "/none").error().code(), Code::kNotFound);
}

TEST(RootTest, ARootThatIsALinkOrTheWholeMachine) {
  TestTree tree;
  tree.file("/real/usr/lib/a");
  tree.link("/real/lib", "/usr/lib");
  tree.link("/alias", "real");
  auto root = Root::open(tree.path() + "/alias");
  ASSERT_TRUE(root.has_value());
  EXPECT_EQ(root->resolve("/lib/a").value(), "/usr/lib/a");
  EXPECT_EQ(root->on_host("/lib/a"), tree.path() + "/alias/lib/a");
  auto machine = Root::open("/");
  ASSERT_TRUE(machine.has_value());
  EXPECT_EQ(machine->resolve(tree.path() + "/alias/lib").value(), machine->resolve("/usr/lib").value())
      << "the link is absolute, and this root is the machine's";
  EXPECT_EQ(machine->resolve(tree.path() + "/alias").value(), tree.path() + "/real");
}

TEST(RootTest, ListsAndGlobs) {
  TestTree tree;
  for (const char* name : {"nvidia0", "nvidia10", "nvidia-fs1", "nvidia-fs0", "zero"})
    tree.file(std::string("/dev/") + name);
  tree.folder("/dev/nvidia-caps");
  const Root root = opened(tree);
  EXPECT_THAT(root.glob("/dev/nvidia-fs*"), ElementsAre("/dev/nvidia-fs0", "/dev/nvidia-fs1"));
  EXPECT_THAT(root.glob("/dev/*0"), ElementsAre("/dev/nvidia-fs0", "/dev/nvidia0", "/dev/nvidia10"));
  EXPECT_THAT(root.glob("/none/*"), IsEmpty());
  const auto dev = root.list("/dev");
  ASSERT_TRUE(dev.has_value());
  EXPECT_EQ(dev->size(), 6u);
  EXPECT_EQ(dev->entry(0).name, "nvidia-caps");
  EXPECT_EQ(dev->entry(0).type, FileType::kFolder);
  EXPECT_EQ(dev->with_prefix("nvidia-").second, 3u);
  EXPECT_EQ(dev->with_prefix("nvidia-g"), (std::pair<std::size_t, std::size_t>(3, 3)));
  EXPECT_TRUE(dev->has("zero"));
  EXPECT_FALSE(dev->has("zer"));
}

TEST(RootTest, AFolderOfMoreThanOneListing) {
  TestTree tree;
  for (int index = 0; index < 3000; ++index) tree.link("/many/name-" + std::to_string(index), "nowhere");
  const auto many = opened(tree).list("/many");
  ASSERT_TRUE(many.has_value());
  EXPECT_EQ(many->size(), 3000u);
  EXPECT_EQ(many->type_of("name-2999"), FileType::kLink);
}

TEST(RootTest, Patterns) {
  EXPECT_TRUE(matches("libnvidia-egl-gbm.so.*.*", "libnvidia-egl-gbm.so.1.1.0"));
  EXPECT_FALSE(matches("libnvidia-egl-gbm.so.*.*", "libnvidia-egl-gbm.so.1"));
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(matches("a*b*c", "aXbYbZ"));
  EXPECT_FALSE(matches("", "a"));
  // Many stars over a long run: still answered at once.
  EXPECT_FALSE(matches("*a*a*a*a*a*a*a*a*a*b", std::string(5000, 'a')));
  EXPECT_EQ(normalised("//a/./b/../../../c/"), "/c");
  EXPECT_EQ(normalised(""), "/");
}

TEST(RootTest, FoldersAreListedOnceByAnyName) {
  TestTree tree;
  tree.file("/usr/lib64/libcuda.so");
  tree.link("/lib64", "/usr/lib64");
  tree.fifo("/usr/fifo");
  const Root root = opened(tree);
  Folders folders(root);
  const Folder* real = folders.get("/usr/lib64");
  ASSERT_NE(real, nullptr);
  EXPECT_EQ(folders.get("/lib64"), real);
  EXPECT_EQ(folders.get("/usr/lib64/xorg/modules"), nullptr);
  tree.folder("/usr/lib64/xorg");
  EXPECT_EQ(folders.get("/usr/lib64/xorg"), nullptr) << "the listing at hand says that it is not there";
  EXPECT_THAT(folders.problems(), IsEmpty());
  EXPECT_EQ(folders.get("/usr/fifo"), nullptr);
  EXPECT_THAT(folders.problems(), IsEmpty()) << "what is no folder is as one that is not there";
}

TEST(RootTest, TheDevRootFollowsTheDriverRoot) {
  TestTree tree;
  auto without = open_roots({tree.path()});
  ASSERT_TRUE(without.has_value());
  EXPECT_EQ(without->dev.path(), "/");
  tree.file("/dev/nvidiactl");
  auto with = open_roots({tree.path(), "/run/nvidia/driver"});
  ASSERT_TRUE(with.has_value());
  EXPECT_EQ(with->dev.path(), tree.path());
  EXPECT_EQ(with->dev.on_host("/dev/nvidia0"), "/run/nvidia/driver/dev/nvidia0");
  EXPECT_EQ(with->proc.path(), "/proc");
}

}  // namespace
}  // namespace gpulet::cdi
