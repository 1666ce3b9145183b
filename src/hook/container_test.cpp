#include "hook/container.h"

#include <gmock/gmock.h>

#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;

Result<Container> read_state(const TestImage& image, const std::string& state) {
  const auto path = image.base() / "state.json";
  std::ofstream(path) << state;
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return read_container(fd.get());
}

TEST(Container, RuncsStateLeadsThroughTheBundle) {
  const TestImage image;
  image.environment({"A=1", "PATH=/bin", "A=2"});
  const auto container = read_state(image, image.state());
  ASSERT_TRUE(container) << container.error().text();
  EXPECT_EQ(container->root_path, image.root());
  EXPECT_THAT(container->environment, ElementsAre("A=1", "PATH=/bin", "A=2"));
  EXPECT_EQ(container->variable("A"), "2");
  EXPECT_EQ(container->variable("PAT"), "");
  EXPECT_FALSE(container->user_namespace);
}

TEST(Container, CrunsStateHasTheRoot) {
  const TestImage image;
  std::filesystem::remove(image.base() / "bundle/config.json");
  const auto container =
      read_state(image, R"({"root":")" + image.root().string() + R"(","bundle":"/nonexistent"})");
  ASSERT_TRUE(container) << container.error().text();
  EXPECT_EQ(container->root_path, image.root());
}

TEST(Container, AnAbsoluteRootInTheBundle) {
  const TestImage image;
  std::ofstream(image.base() / "bundle/config.json")
      << R"({"root":{"path":")" << image.root().string()
      << R"(","readonly":true},"process":null,"linux":{"namespaces":[{"type":"mount"},{"type":"user"}]}})";
  const auto container = read_state(image, image.state());
  ASSERT_TRUE(container) << container.error().text();
  EXPECT_TRUE(container->root_read_only);
  EXPECT_TRUE(container->user_namespace);
}

TEST(Container, MembersOfTheWrongKindAreErrors) {
  for (const char* json : {R"({"root":[]})", R"({"root":{"path":1}})", R"({"process":{"env":{}}})",
                           R"({"process":{"env":[1]}})", R"({"root":{"readonly":"yes"}})",
                           R"({"linux":{"namespaces":{}}})", R"([])", R"({"root":{"path":"a\u0000b"}})"})
    EXPECT_FALSE(parse_bundle_config(json)) << json;
  for (const char* json : {R"({"bundle":[]})", R"({"root":1})", R"({"id":{}})"})
    EXPECT_FALSE(parse_state(json)) << json;
}

TEST(Container, OfTwoMembersTheLaterCounts) {
  const auto state = parse_state(R"({"root":"/a","root":"/b","annotations":{"root":"/c"}})");
  ASSERT_TRUE(state);
  EXPECT_EQ(state->root, "/b");
}

}  // namespace
}  // namespace gpulet::hook
