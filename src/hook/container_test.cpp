#include "hook/container.h"

#include <gmock/gmock.h>

#include "hook/test_image.h"

namespace gpulet::hook {
namespace {

using testing::ElementsAre;

Result<Container> read_container_state(const TestImage& image, const std::string& state) {
  const auto path = image.base_directory() / "state.json";
  std::ofstream(path) << state;
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return read_container(fd.get());
}

TEST(Container, ReadsRuncStateThroughTheBundle) {
  const TestImage image;
  image.set_environment({"A=1", "PATH=/bin", "A=2"});
  const auto container = read_container_state(image, image.oci_state());
  ASSERT_TRUE(container) << container.error().full_message();
  EXPECT_EQ(container->root_path, image.root_directory());
  EXPECT_THAT(container->environment, ElementsAre("A=1", "PATH=/bin", "A=2"));
  EXPECT_EQ(container->environment_value("A"), "2");
  EXPECT_EQ(container->environment_value("PAT"), "");
  EXPECT_FALSE(container->user_namespace);
}

TEST(Container, ReadsTheRootOfCrunState) {
  const TestImage image;
  std::filesystem::remove(image.base_directory() / "bundle/config.json");
  const auto container = read_container_state(
      image, R"({"root":")" + image.root_directory().string() + R"(","bundle":"/nonexistent"})");
  ASSERT_TRUE(container) << container.error().full_message();
  EXPECT_EQ(container->root_path, image.root_directory());
}

TEST(Container, AcceptsAnAbsoluteRootInTheBundle) {
  const TestImage image;
  std::ofstream(image.base_directory() / "bundle/config.json")
      << R"({"root":{"path":")" << image.root_directory().string()
      << R"(","readonly":true},"process":null,"linux":{"namespaces":[{"type":"mount"},{"type":"user"}]}})";
  const auto container = read_container_state(image, image.oci_state());
  ASSERT_TRUE(container) << container.error().full_message();
  EXPECT_TRUE(container->root_read_only);
  EXPECT_TRUE(container->user_namespace);
}

TEST(Container, RejectsMembersOfTheWrongType) {
  for (const char* json : {R"({"root":[]})", R"({"root":{"path":1}})", R"({"process":{"env":{}}})",
                           R"({"process":{"env":[1]}})", R"({"root":{"readonly":"yes"}})",
                           R"({"linux":{"namespaces":{}}})", R"([])", R"({"root":{"path":"a\u0000b"}})"})
    EXPECT_FALSE(parse_bundle_config(json)) << json;
  for (const char* json : {R"({"bundle":[]})", R"({"root":1})", R"({"id":{}})"})
    EXPECT_FALSE(parse_oci_state(json)) << json;
}

TEST(Container, UsesTheLastOfDuplicateMembers) {
  const auto state = parse_oci_state(R"({"root":"/a","root":"/b","annotations":{"root":"/c"}})");
  ASSERT_TRUE(state);
  EXPECT_EQ(state->root, "/b");
}

}  // namespace
}  // namespace gpulet::hook
