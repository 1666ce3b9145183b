#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace gpulet {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string pattern = testing::TempDir() + "gpulet-file-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_F(FileTest, AnAtomicWriteLeavesNothingElseBehind) {
  const std::string path = folder_ + "/a/b/file";
  ASSERT_TRUE(write_file_atomic(path, "one"));
  ASSERT_TRUE(write_file_atomic(path, "two", 0600));
  EXPECT_EQ(read_file(path).value(), "two");
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(RootDirectory::open(folder_ + "/a/b")->list("/").value(), (std::vector<std::string>{"file"}));
}

TEST_F(FileTest, AReadStopsAtItsLimit) {
  std::ofstream(folder_ + "/big") << std::string(100, 'x');
  EXPECT_EQ(read_file(folder_ + "/big", 99).error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(read_file(folder_ + "/big", 100));
  EXPECT_EQ(read_file(folder_ + "/none").error().code(), Code::kNotFound);
}

TEST_F(FileTest, LinksNeverLeadOutOfARoot) {
  std::filesystem::create_directories(folder_ + "/root/etc");
  std::ofstream(folder_ + "/outside") << "outside";
  std::ofstream(folder_ + "/root/etc/inside") << "inside";
  std::filesystem::create_symlink("/etc/inside", folder_ + "/root/absolute");
  std::filesystem::create_symlink("../../outside", folder_ + "/root/etc/up");
  const auto root = RootDirectory::open(folder_ + "/root").value();
  EXPECT_EQ(root.read("/absolute").value(), "inside");
  EXPECT_EQ(root.resolve("absolute").value(), "/etc/inside");
  EXPECT_EQ(root.read("/etc/up").error().code(), Code::kNotFound);
  EXPECT_EQ(root.read("/../../outside").error().code(), Code::kNotFound);
  EXPECT_EQ(root.character_device("/etc/inside").error().code(), Code::kFailedPrecondition);
}

}  // namespace
}  // namespace gpulet
