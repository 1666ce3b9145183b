#include "base/temporary_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/file.h"

namespace gpulet {
namespace {

TEST(TemporaryFiles, OfAKilledWriterAreRemoved) {
  const std::string directory = testing::TempDir() + "temporary_files";
  const std::set<std::string> kept = {"a-1.json", "a-1.json.tmp", "b-1.json.tmp.12.3", "a-1.yaml.tmp.12.3"};
  for (const auto& name : kept) ASSERT_TRUE(write_file_atomic(directory + "/" + name, "x"));
  for (const char* name : {"a-1.json.tmp.12.3", "a-2.json.tmp.7.0"})
    ASSERT_TRUE(write_file_atomic(directory + "/" + name, "x"));
  remove_temporary_files(directory, "a-", ".json");
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    left.insert(entry.path().filename().string());
  EXPECT_EQ(left, kept);
  std::filesystem::remove_all(directory);
  remove_temporary_files(directory, "a-", ".json");
}

}  // namespace
}  // namespace gpulet
