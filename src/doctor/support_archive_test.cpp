#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/process.h"
#include "doctor/support_archive.h"

namespace gpulet::doctor {
namespace {

const std::chrono::system_clock::time_point kThen{std::chrono::seconds(1'700'000'000)};

// Checked with this machine's tar.
TEST(Archive, IsReadableByTar) {
  const std::string directory = testing::TempDir() + "gpulet-archive";
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(make_directories(directory));
  const std::string deep = "a/" + std::string(90, 'd') + "/" + std::string(90, 'f');
  const std::vector<ArchiveFile> files{{"a/empty", ""},
                                       {"a/block", std::string(512, 'x')},
                                       {"a/more.txt", std::string(513, 'y')},
                                       {deep, "deep"}};
  const auto archive = make_tar(files, kThen);
  ASSERT_TRUE(archive) << archive.error().full_message();
  EXPECT_EQ(archive->size() % 512, 0u);
  ASSERT_TRUE(write_file_atomic(directory + "/x.tar", *archive));
  const auto tar = Process::spawn({.program = "/bin/tar",
                                   .arguments = {"tar", "-xf", directory + "/x.tar", "-C", directory},
                                   .environment = {"PATH=/usr/bin:/bin"}});
  ASSERT_TRUE(tar) << tar.error().full_message();
  const auto exit = (*tar)->wait_for_exit(std::chrono::seconds(20));
  ASSERT_TRUE(exit && exit->succeeded());
  for (const auto& file : files)
    EXPECT_EQ(read_file(directory + "/" + file.name).value_or("missing"), file.content) << file.name;
  std::filesystem::remove_all(directory);
}

TEST(Archive, IsDeterministic) {
  EXPECT_EQ(make_tar({{"a", "x"}}, kThen).value(), make_tar({{"a", "x"}}, kThen).value());
}

TEST(Archive, RejectsInvalidNames) {
  for (const std::string& name :
       {std::string(), std::string(101, 'x'), std::string(300, 'x') + "/y", "/" + std::string(100, 'x')}) {
    const auto archive = make_tar({{name, "x"}}, kThen);
    ASSERT_FALSE(archive) << name;
    EXPECT_EQ(archive.error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gpulet::doctor
