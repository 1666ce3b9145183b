#include "preflight/preflight_policy.h"

#include <gtest/gtest.h>

namespace gpulet::preflight {
namespace {

TEST(PreflightBootRecord, ReadsBackWhatIsWritten) {
  using Kind = Verdict::Kind;
  const BootRecord record{"boot-1",
                          {{DeviceUuid("GPU-1"), Kind::kPassed}, {DeviceUuid("GPU-2"), Kind::kSlow}},
                          {DeviceUuid("GPU-2"), DeviceUuid("GPU-3")}};
  EXPECT_EQ(format_boot_record(record),
            "gpulet-preflight 1\nboot boot-1\ngpu GPU-1 passed\ngpu GPU-2 slow\n"
            "started GPU-2\nstarted GPU-3\nend\n");
  const auto read = parse_boot_record(format_boot_record(record));
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, record);
  EXPECT_EQ(*parse_boot_record(format_boot_record({})), BootRecord{});
  EXPECT_EQ(*read_boot_record("/nonexistent/gpu-preflight"), BootRecord{});
}

TEST(PreflightBootRecord, RefusesOtherFiles) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "line 1 is not 'gpulet-preflight 1'"},
      {"gpulet-preflight 1\nboot a\n", "the file is cut"},
      {"gpulet-preflight 1\nboot a\nboot b\nend\n", "line 3 is neither"},
      {"gpulet-preflight 1\ngpu a passed\ngpu a failed\nend\n", "line 3 is neither"},
      {"gpulet-preflight 1\ngpu a\nend\n", "line 2 is neither"},
      {"gpulet-preflight 1\ngpu a run-again\nend\n", "line 2 is neither"},
      {"gpulet-preflight 1\ngpu a passed b\nend\n", "line 2 is neither"},
      {"gpulet-preflight 1\nstarted a\nstarted a\nend\n", "line 3 is neither"},
      {"gpulet-preflight 1\nstarted\nend\n", "line 2 is neither"},
      {"gpulet-preflight 1\nother a\nend\n", "line 2 is neither"},
  };
  for (const auto& [text, why] : rows) {
    const auto read = parse_boot_record(text);
    ASSERT_FALSE(read) << text;
    EXPECT_NE(read.error().message().find(why), std::string::npos) << read.error().message();
  }
}

}  // namespace
}  // namespace gpulet::preflight
