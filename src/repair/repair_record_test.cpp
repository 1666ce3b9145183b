#include "repair/repair_record.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

namespace gpulet::repair {
namespace {

Record full_record() {
  using std::chrono::milliseconds;
  Record record;
  record.resetting = Record::Reset{
      "boot-1", WallTime(milliseconds(1763712000123)), {DeviceUuid("GPU-a"), DeviceUuid("GPU-b")}};
  record.attempts[DeviceUuid("GPU-a")] = {WallTime(milliseconds(1763711000000)),
                                          WallTime(milliseconds(1763712000123))};
  record.reboot = Record::Reboot{"boot-0", WallTime(milliseconds(1763711000000)), {DeviceUuid("GPU-b")}};
  return record;
}

TEST(RepairRecord, IsReadAsWritten) {
  const std::string text =
      "gpulet-repair 1\n"
      "resetting boot-1 1763712000123 GPU-a,GPU-b\n"
      "gpu GPU-a 1763711000000,1763712000123\n"
      "reboot boot-0 1763711000000 GPU-b\n"
      "end\n";
  EXPECT_EQ(format_record(full_record()), text);
  const auto parsed = parse_record(text);
  ASSERT_TRUE(parsed) << parsed.error().full_message();
  EXPECT_EQ(*parsed, full_record());
  EXPECT_EQ(parse_record(format_record({})).value(), Record{});
}

TEST(RepairRecord, ADamagedOneIsRefusedWithItsLine) {
  for (const auto& [text, line] :
       {std::pair("", "line 1"),
        {"gpulet-repair 2\nend\n", "line 1"},
        {"gpulet-repair 1\n", "end"},
        {"gpulet-repair 1\ngpu GPU-a 5\n", "end"},
        {"gpulet-repair 1\n\nend\n", "line 2"},
        {"gpulet-repair 1\ngpu GPU-a x\nend\n", "line 2"},
        {"gpulet-repair 1\ngpu GPU-a 1 5\nend\n", "line 2"},
        {"gpulet-repair 1\ngpu GPU-a 5\ngpu GPU-a 5\nend\n", "line 3"},
        {"gpulet-repair 1\ngpu GPU-a 5,\nend\n", "line 2"},
        {"gpulet-repair 1\ngpu GPU-a \nend\n", "line 2"},
        {"gpulet-repair 1\nreboot b 5\nend\n", "line 2"},
        {"gpulet-repair 1\nreboot b 5 GPU-a\nreboot b 5 GPU-a\nend\n", "line 3"},
        {"gpulet-repair 1\nresetting b 5 \nend\n", "line 2"},
        {"gpulet-repair 1\nresetting b 5 GPU-a,\nend\n", "line 2"},
        {"gpulet-repair 1\nreboot b 99999999999999999999 GPU-a\nend\n", "line 2"}}) {
    const auto parsed = parse_record(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.error().message().find(line), std::string::npos)
        << text << ": " << parsed.error().message();
  }
}

TEST(RepairRecord, KeepsTheNewestAttempts) {
  Record record;
  const DeviceUuid gpu("GPU-a");
  for (unsigned i = 0; i < kMaxRecordAttempts + 5; ++i)
    record.add_attempt(gpu, WallTime(std::chrono::hours(i)));
  ASSERT_EQ(record.attempts.at(gpu).size(), kMaxRecordAttempts);
  EXPECT_EQ(record.attempts.at(gpu).front(), WallTime(std::chrono::hours(5)));
  EXPECT_EQ(parse_record(format_record(record)).value(), record);
  // The largest record is one that is read back.
  for (unsigned i = 0; i < kMaxRecordGpus; ++i)
    record.attempts[DeviceUuid("GPU-00000000-0000-0000-0000-" + std::to_string(100000000000 + i))] =
        std::vector(kMaxRecordAttempts, WallTime(std::chrono::milliseconds(1763712000123)));
  EXPECT_LE(format_record(record).size(), kMaxRecordBytes);
}

TEST(RepairRecord, AnEmptyOneIsNoFile) {
  char directory[] = "/tmp/gpulet-repair-XXXXXX";
  ASSERT_NE(::mkdtemp(directory), nullptr);
  const auto path = record_path(directory);
  EXPECT_EQ(read_record(path).value(), Record{});
  ASSERT_TRUE(write_record(path, full_record()));
  EXPECT_EQ(read_record(path).value(), full_record());
  ASSERT_TRUE(write_record(path, {}));
  EXPECT_EQ(read_file(path).error().code(), Code::kNotFound);
  EXPECT_TRUE(write_record(path, {}));
  ::rmdir(directory);
}

}  // namespace
}  // namespace gpulet::repair
