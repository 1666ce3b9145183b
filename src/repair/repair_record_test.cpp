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
  record.attempts[DeviceUuid("GPU-a")] = {2, WallTime(milliseconds(1763712000123))};
  record.reboot = Record::Reboot{"boot-0", WallTime(milliseconds(1763711000000))};
  return record;
}

TEST(RepairRecord, IsReadAsWritten) {
  const std::string text =
      "gpulet-repair 1\n"
      "resetting boot-1 1763712000123 GPU-a,GPU-b\n"
      "gpu GPU-a 2 1763712000123\n"
      "reboot boot-0 1763711000000\n"
      "end\n";
  EXPECT_EQ(format_record(full_record()), text);
  const auto parsed = parse_record(text);
  ASSERT_TRUE(parsed) << parsed.error().full_message();
  EXPECT_EQ(*parsed, full_record());
  EXPECT_EQ(parse_record(format_record({})).value(), Record{});
}

TEST(RepairRecord, ADamagedOneIsRefusedWithItsLine) {
  for (const auto& [text, line] : {std::pair("", "line 1"),
                                   {"gpulet-repair 2\nend\n", "line 1"},
                                   {"gpulet-repair 1\n", "end"},
                                   {"gpulet-repair 1\ngpu GPU-a 1 5\n", "end"},
                                   {"gpulet-repair 1\n\nend\n", "line 2"},
                                   {"gpulet-repair 1\ngpu GPU-a x 5\nend\n", "line 2"},
                                   {"gpulet-repair 1\ngpu GPU-a 1\nend\n", "line 2"},
                                   {"gpulet-repair 1\ngpu GPU-a 1 5\ngpu GPU-a 1 5\nend\n", "line 3"},
                                   {"gpulet-repair 1\ngpu GPU-a 99999999 5\nend\n", "line 2"},
                                   {"gpulet-repair 1\nreboot b 5\nreboot b 5\nend\n", "line 3"},
                                   {"gpulet-repair 1\nresetting b 5 \nend\n", "line 2"},
                                   {"gpulet-repair 1\nresetting b 5 GPU-a,\nend\n", "line 2"},
                                   {"gpulet-repair 1\nreboot b 99999999999999999999\nend\n", "line 2"}}) {
    const auto parsed = parse_record(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
    EXPECT_NE(parsed.error().message().find(line), std::string::npos)
        << text << ": " << parsed.error().message();
  }
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
