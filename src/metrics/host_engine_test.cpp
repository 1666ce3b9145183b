#include "metrics/host_engine.h"

#include <gtest/gtest.h>

namespace gpulet::metrics {
namespace {

const std::vector<Field> kRatios{Field::kGraphicsActive, Field::kSmActive, Field::kPcieTxBytes};

TEST(HostEngineFields, AreThoseOfProfilingByTheirIds) {
  EXPECT_EQ(host_engine_fields({Field::kDramActive, Field::kGpuTemp, Field::kGraphicsActive}),
            (std::vector{Field::kGraphicsActive, Field::kDramActive}));
  EXPECT_TRUE(host_engine_fields({Field::kGpuTemp}).empty());
  EXPECT_EQ(dmon_field_ids(kRatios), "57,1001,1002,1009");
}

TEST(DmonRow, HasOneColumnPerField) {
  const auto row = parse_dmon_row(
      "GPU 4     00000000:1b:00.0          0.571        N/A          1234567        ", kRatios);
  ASSERT_TRUE(row);
  EXPECT_EQ(row->pci.nvml_text(), "00000000:1B:00.0");
  EXPECT_EQ(row->values, (Values{{Field::kGraphicsActive, 0.571}, {Field::kPcieTxBytes, 1234567.0}}));
}

TEST(DmonRow, OtherLinesAreNone) {
  for (const char* line :
       {"", "#Entity   PCBID   GRACT        SMACT        PCITX", "ID        #",
        "GPU 4     00000000:1B:00.0  0.571", "GPU 4     00000000:1B:00.0  0.571  0.5  1  2",
        "GPU-I 21  00000000:1B:00.0  0.000  0.000  0", "GPU 4     N/A               0.5  0.5  1",
        "Error setting watches. Result: -33: This request is not",
        "Error: unable to establish a connection to the specified host: localhost"}) {
    EXPECT_FALSE(parse_dmon_row(line, kRatios)) << line;
  }
}

TEST(DmonRow, ValuesThatAreNoNumbersAreLeftOut) {
  const auto row = parse_dmon_row("GPU 0 00000000:1B:00.0 nan -1 1e400", kRatios);
  ASSERT_TRUE(row);
  EXPECT_TRUE(row->values.empty());
}

TEST(DmonRow, HeadersAreNoMessages) {
  for (const char* line : {"", "  ", "#Entity   GRACT", "ID", "ID        #     "})
    EXPECT_TRUE(is_dmon_header(line));
  EXPECT_FALSE(is_dmon_header("Error: unable to establish a connection"));
  EXPECT_FALSE(is_dmon_header("GPU 0     0.571"));
}

}  // namespace
}  // namespace gpulet::metrics
