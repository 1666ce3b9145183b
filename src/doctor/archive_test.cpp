#include "doctor/archive.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/file.h"
#include "base/process.h"

namespace gpulet::doctor {
namespace {

const std::chrono::system_clock::time_point kThen{std::chrono::seconds(1'700'000'000)};

// By the tar of this machine, which knows the format better than we do.
TEST(Archive, TarReadsIt) {
  const std::string folder = testing::TempDir() + "gpulet-archive";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(make_directories(folder));
  const std::string deep = "a/" + std::string(90, 'd') + "/" + std::string(90, 'f');
  const std::vector<ArchiveFile> files{{"a/empty", ""},
                                       {"a/block", std::string(512, 'x')},
                                       {"a/more.txt", std::string(513, 'y')},
                                       {deep, "deep"}};
  const auto archive = tar_of(files, kThen);
  ASSERT_TRUE(archive) << archive.error().text();
  EXPECT_EQ(archive->size() % 512, 0u);
  ASSERT_TRUE(write_file_atomic(folder + "/x.tar", *archive));
  const auto tar = Process::start({.program = "/bin/tar",
                                   .arguments = {"tar", "-xf", folder + "/x.tar", "-C", folder},
                                   .environment = {"PATH=/usr/bin:/bin"}});
  ASSERT_TRUE(tar) << tar.error().text();
  const auto exit = (*tar)->wait(std::chrono::seconds(20));
  ASSERT_TRUE(exit && exit->ok());
  for (const auto& file : files)
    EXPECT_EQ(read_file(folder + "/" + file.name).value_or("missing"), file.content) << file.name;
  std::filesystem::remove_all(folder);
}

TEST(Archive, TheSameFilesGiveTheSameBytes) {
  EXPECT_EQ(tar_of({{"a", "x"}}, kThen).value(), tar_of({{"a", "x"}}, kThen).value());
}

TEST(Archive, ANameThatFitsNowhereIsRefused) {
  for (const std::string& name :
       {std::string(), std::string(101, 'x'), std::string(300, 'x') + "/y", "/" + std::string(100, 'x')}) {
    const auto archive = tar_of({{name, "x"}}, kThen);
    ASSERT_FALSE(archive) << name;
    EXPECT_EQ(archive.error().code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gpulet::doctor
