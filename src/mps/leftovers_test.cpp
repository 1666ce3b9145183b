#include "mps/leftovers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "base/file.h"
#include "mps/plan.h"

namespace gpulet::mps {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class LeftoversTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "leftovers.XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    folder_ = path;
    root_ = folder_ + "/mps";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder_, root_;
};

TEST_F(LeftoversTest, GoWithoutAnythingElse) {
  for (const auto& path :
       {pipe_directory(root_, "nvidia.com/gpu") + "/control.pid", shm_directory(root_) + "/memory",
        ready_file(root_), root_ + "/an operator's", folder_ + "/outside/kept"}) {
    ASSERT_TRUE(write_file_atomic(path, ""));
  }
  std::filesystem::create_directory_symlink(folder_ + "/outside",
                                            pipe_directory(root_, "nvidia.com/gpu") + "/link");
  const auto removed = remove_leftovers(root_);
  ASSERT_TRUE(removed) << removed.error().text();
  EXPECT_THAT(*removed, ElementsAre(shm_directory(root_), ready_file(root_), root_ + "/nvidia.com"));
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/outside/kept"));
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(root_))
    left.push_back(entry.path().filename());
  EXPECT_THAT(left, ElementsAre("an operator's"));
}

TEST_F(LeftoversTest, NothingIsNothing) {
  const auto removed = remove_leftovers(root_);
  ASSERT_TRUE(removed) << removed.error().text();
  EXPECT_THAT(*removed, IsEmpty());
}

}  // namespace
}  // namespace gpulet::mps
