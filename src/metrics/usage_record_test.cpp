#include "metrics/usage_record.h"

#include <gtest/gtest.h>

#include "metrics/test_pods.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

UsageRecord full_record() {
  UsageRecord record;
  record.boot_id = "4c6f-1";
  record.since = WallTime(1'763'712'000'123ms);
  record.namespaces = {{"", {500, 0ns, 9ns, 0ns}}, {"prod", {3, 2ns, 4ns, 2ns}}};
  record.devices[DeviceUuid("GPU-0")] = {
      {1, 2ns, 3ns, 4ns}, {500, 0ns, 9ns, 0ns}, {{kServe, {3, 2ns, 4ns, 2ns}}}};
  record.devices[DeviceUuid("MIG-1")] = {};
  record.energy[DeviceUuid("GPU-0")] = 81'726'354;
  return record;
}

const std::string kFullText =
    "gpulet-usage 1\n"
    "boot 4c6f-1\n"
    "since 1763712000123\n"
    "namespace - 500 0 9 0\n"
    "namespace prod 3 2 4 2\n"
    "device GPU-0 81726354\n"
    "departed 1 2 3 4\n"
    "rest 500 0 9 0\n"
    "pod prod serve 3 2 4 2\n"
    "device MIG-1 -\n"
    "departed 0 0 0 0\n"
    "rest 0 0 0 0\n"
    "end\n";

TEST(UsageRecord, IsTextThatIsReadBack) {
  EXPECT_EQ(format_usage_record(full_record()), kFullText);
  const auto read = parse_usage_record(kFullText);
  ASSERT_TRUE(read) << read.error().full_message();
  EXPECT_EQ(*read, full_record());
}

TEST(UsageRecord, RefusesOtherTexts) {
  const auto with = [](const std::string& before, const std::string& after) {
    auto text = kFullText;
    return text.replace(text.find(before), before.size(), after);
  };
  for (const auto& [text, line] : std::vector<std::pair<std::string, int>>{
           {"", 1},
           {with("gpulet-usage 1", "gpulet-usage 2"), 1},
           {with("boot 4c6f-1", "boot"), 2},
           {with("since 1763712000123", "since -5"), 3},
           {with("since 1763712000123", "since 9999999999999999"), 3},
           {with("namespace - 500 0 9 0", "namespace - 500 0 9"), 4},
           {with("namespace prod", "namespace -"), 5},
           {with("device GPU-0 81726354", "device GPU-0 x"), 6},
           {with("device GPU-0 81726354\n", ""), 6},
           {with("departed 1 2 3 4", "departed 1 -2 3 4"), 7},
           {with("rest 500 0 9 0", "rest 500 0 9223372036854775807 0"), 8},
           {with("pod prod serve 3", "pod prod 3"), 9},
           {with("pod prod serve", "pod prod serve 1"), 9},
           {with("device MIG-1", "device GPU-0"), 10},
           {with("rest 0 0 0 0", "surplus 0 0 0 0"), 12},
           {with("end\n", ""), 13},
       }) {
    const auto read = parse_usage_record(text);
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(read.error().message().starts_with("line " + std::to_string(line) + " "))
        << read.error().message() << "\n"
        << text;
  }
}

TEST(UsageRecord, IsBounded) {
  UsageRecord record;
  auto& device = record.devices[DeviceUuid("GPU-0")];
  for (std::size_t i = 0; i < kMaxRecordPods + 5; ++i)
    device.pods[{"n", "p" + std::to_string(i)}] = {1, 1ns, 1ns, 1ns};
  const auto text = format_usage_record(record);
  EXPECT_LT(text.size(), kMaxUsageBytes);
  const auto read = parse_usage_record(text);
  ASSERT_TRUE(read) << read.error().full_message();
  EXPECT_EQ(read->devices.at(DeviceUuid("GPU-0")).pods.size(), kMaxRecordPods);
  EXPECT_EQ(read->devices.at(DeviceUuid("GPU-0")).departed, (UsageAmount{5, 5ns, 5ns, 5ns}));
}

}  // namespace
}  // namespace gpulet::metrics
