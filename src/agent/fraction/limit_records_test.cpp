#include "agent/fraction/limit_records.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace gpulet::agent {
namespace {

using testing::HasSubstr;

const std::string kFirstRecord(64, '1'), kSecondRecord(64, '2');
const DeviceUuid kRecordedGpu("GPU-0"), kOtherRecordedGpu("GPU-1");

LimitRecord test_record(const std::string& id) {
  return {id, {"team", "a", "uid-a"}, "main", "/cgroup/" + id, {{kRecordedGpu, mebibytes(1024)}}};
}

class LimitRecordsTest : public testing::Test {
 protected:
  LimitRecordsTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "limit-records-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    root = pattern;
  }
  ~LimitRecordsTest() override { std::filesystem::remove_all(root); }

  std::string root;
};

TEST_F(LimitRecordsTest, ARecordNamesThePod) {
  auto record = test_record(kFirstRecord);
  EXPECT_EQ(limit_record_json(record).find("podC"), std::string::npos) << "as an earlier agent reads it";
  record.pod_cgroup = "/cgroup";
  record.pod_gpus = {kRecordedGpu};
  const auto text = limit_record_json(record);
  EXPECT_EQ(parse_limit_record(text).value(), record);
  for (const auto& [from, to] : {std::pair{"\"podCgroup\":\"/", "\"podCgroup\":\""},
                                 {"\"podGPUs\":\"GPU-0\"", "\"podGPUs\":\"GPU-7\""},
                                 {",\"podGPUs\":\"GPU-0\"", ""}}) {
    auto wrong = text;
    wrong.replace(wrong.find(from), std::string_view(from).size(), to);
    EXPECT_FALSE(parse_limit_record(wrong)) << wrong;
  }
}

TEST_F(LimitRecordsTest, RecordsAreReadAsTheyAreWritten) {
  const LimitRecordStore store(root);
  auto record = test_record(kFirstRecord);
  record.limits[kOtherRecordedGpu] = mebibytes(80'000);
  ASSERT_TRUE(store.write_record(record));
  EXPECT_EQ(store.load_records()->records, std::vector{record});
  const auto text = limit_record_json(record);
  EXPECT_EQ(parse_limit_record(text).value(), record);
  for (const auto& [from, to] : {std::pair{"\"version\":1", "\"version\":2"},
                                 {"\"cgroup\":\"/", "\"cgroup\":\""},
                                 {"\"container\":\"main\"", "\"container\":7"},
                                 {"\"podUID\"", "\"uid\""},
                                 {"1073741824", "-1"},
                                 {"}\n", ""}}) {
    auto wrong = text;
    wrong.replace(wrong.find(from), std::string_view(from).size(), to);
    EXPECT_FALSE(parse_limit_record(wrong)) << wrong;
  }
  EXPECT_FALSE(parse_limit_record(std::string(kMaxLimitRecordBytes + 1, ' ')));
  record.container_id = "../x";
  EXPECT_FALSE(store.write_record(record));

  // What is no record stays where it is; what a killed writer left goes.
  std::ofstream(root + "/" + kSecondRecord + ".json") << text;
  std::ofstream(root + "/" + kFirstRecord + ".json.tmp.x") << "{";
  std::ofstream(root + "/agent.sock") << "";
  const auto loaded = store.load_records();
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->records.size(), 1u);
  ASSERT_EQ(loaded->errors.size(), 1u);
  EXPECT_THAT(loaded->errors[0].full_message(),
              HasSubstr(kSecondRecord + ".json: id: expected the file's name"));
  EXPECT_FALSE(std::filesystem::exists(root + "/" + kFirstRecord + ".json.tmp.x"));
  EXPECT_TRUE(store.remove_record(kFirstRecord));
  EXPECT_TRUE(store.remove_record(kFirstRecord));
  EXPECT_EQ(store.load_records()->records.size(), 0u);
  EXPECT_EQ(LimitRecordStore(root + "/none").load_records()->records.size(), 0u);
}

TEST_F(LimitRecordsTest, RecordsMoveToAnotherDirectory) {
  const LimitRecordStore from(root), to(root + "/next/limits");
  EXPECT_TRUE(LimitRecordStore(root + "/none").move_records(to));
  ASSERT_TRUE(from.write_record(test_record(kFirstRecord)));
  ASSERT_TRUE(from.write_record(test_record(kSecondRecord)));
  EXPECT_TRUE(from.move_records(to));
  EXPECT_EQ(from.load_records()->records.size(), 0u);
  EXPECT_EQ(to.load_records()->records, (std::vector{test_record(kFirstRecord), test_record(kSecondRecord)}));
}

}  // namespace
}  // namespace gpulet::agent
