#include "base/record_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "base/file.h"

namespace gpulet {
namespace {

TEST(RecordFiles, AreReadByIdAsTheyWereWritten) {
  const std::string directory = testing::TempDir() + "record_files";
  std::filesystem::remove_all(directory);
  const RecordFiles files(directory);
  std::map<std::string, std::string> read;
  const auto use = [&](const std::string& id, std::string_view text) -> Status {
    if (text == "bad") return fail(Code::kInvalidArgument, "not a record");
    read.emplace(id, text);
    return {};
  };
  EXPECT_TRUE(files.read_files(3, 10, use).value().empty()) << "a missing directory is empty";
  ASSERT_TRUE(files.write_file("b", "two"));
  ASSERT_TRUE(files.write_file("a", "one"));
  ASSERT_TRUE(files.write_file("wrong", "bad"));
  for (const char* other : {"/notes", "/c.json.tmp.1.2"})
    ASSERT_TRUE(write_file_atomic(directory + other, "x"));
  const auto errors = files.read_files(3, 10, use);
  ASSERT_TRUE(errors) << errors.error().full_message();
  EXPECT_EQ(read, (std::map<std::string, std::string>{{"a", "one"}, {"b", "two"}}));
  ASSERT_EQ(errors->size(), 1u);
  EXPECT_EQ(errors->front().full_message(), directory + "/wrong.json: not a record");
  EXPECT_TRUE(std::filesystem::exists(directory + "/wrong.json"));
  EXPECT_TRUE(std::filesystem::exists(directory + "/notes"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/c.json.tmp.1.2"));
  EXPECT_EQ(std::filesystem::status(directory + "/a.json").permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);

  EXPECT_EQ(files.read_files(2, 10, use).error().message(), "expected at most 2 records");
  EXPECT_EQ(files.read_files(3, 2, use).value().size(), 3u) << "all are too long";
  EXPECT_TRUE(files.remove_file("a"));
  EXPECT_TRUE(files.remove_file("a"));
  EXPECT_FALSE(std::filesystem::exists(directory + "/a.json"));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpulet
