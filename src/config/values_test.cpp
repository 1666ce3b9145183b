#include "config/values.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace gpulet::config {
namespace {

using std::chrono::nanoseconds;

TEST(Values, GoBooleans) {
  for (const auto* yes : {"1", "t", "T", "TRUE", "true", "True"}) EXPECT_EQ(parse_go_bool(yes), true) << yes;
  for (const auto* no : {"0", "f", "F", "FALSE", "false", "False"}) EXPECT_EQ(parse_go_bool(no), false) << no;
  for (const auto* none : {"", "yes", "on", "tRUE", "2", " true"}) EXPECT_FALSE(parse_go_bool(none)) << none;
}

TEST(Values, YamlBooleans) {
  for (const auto* yes : {"y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"}) {
    EXPECT_EQ(parse_yaml_bool(yes), true) << yes;
  }
  for (const auto* no : {"n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"}) {
    EXPECT_EQ(parse_yaml_bool(no), false) << no;
  }
  for (const auto* none : {"", "1", "t", "yEs", "oN"}) EXPECT_FALSE(parse_yaml_bool(none)) << none;
}

TEST(Values, Durations) {
  const std::pair<const char*, std::int64_t> good[] = {{"10s", 10'000'000'000},
                                                       {"500ms", 500'000'000},
                                                       {"1m30s", 90'000'000'000},
                                                       {"1h", 3'600'000'000'000},
                                                       {"1.5s", 1'500'000'000},
                                                       {".5s", 500'000'000},
                                                       {"1.s", 1'000'000'000},
                                                       {"0", 0},
                                                       {"-2ms", -2'000'000},
                                                       {"+2ms", 2'000'000},
                                                       {"3us", 3'000},
                                                       {"3\xc2\xb5s", 3'000},
                                                       {"7ns", 7},
                                                       {"1h1m1s1ms1us1ns", 3'661'001'001'001},
                                                       {"9223372036854775807ns", 9'223'372'036'854'775'807}};
  for (const auto& [text, count] : good) EXPECT_EQ(parse_duration(text), nanoseconds(count)) << text;
  for (const auto* bad :
       {"", "10", "s", "10 s", "ten", "1x", "-", ".", ".s", "1.2.3s", "99999999999999999999s", "9999999999h",
        "9223372036854775808ns", "9223372036.9s", "1d"}) {
    EXPECT_FALSE(parse_duration(bad)) << bad;
  }
}

TEST(Values, DurationsAreFormattedShortAndReadBack) {
  EXPECT_EQ(format_duration(std::chrono::seconds(90)), "1m30s");
  EXPECT_EQ(format_duration(std::chrono::milliseconds(500)), "500ms");
  EXPECT_EQ(format_duration(nanoseconds(0)), "0s");
  EXPECT_EQ(format_duration(nanoseconds(-1)), "-1ns");
  rc::check("parse_duration(format_duration(d)) == d", [](std::int32_t count) {
    const nanoseconds duration(std::int64_t{count} * 1'000'003);
    RC_ASSERT(parse_duration(format_duration(duration)) == duration);
  });
}

// NVIDIA's rules for names: the prefix is added, 63 characters in all, the rest a DNS-1123 subdomain.
TEST(Values, ResourceNames) {
  EXPECT_EQ(parse_resource_name("gpu")->str(), "nvidia.com/gpu");
  EXPECT_EQ(parse_resource_name("nvidia.com/gpu")->str(), "nvidia.com/gpu");
  EXPECT_EQ(parse_resource_name("mig-1g.5gb.me")->str(), "nvidia.com/mig-1g.5gb.me");
  EXPECT_EQ(parse_resource_name(std::string(52, 'a'))->str().size(), 63u);
  EXPECT_NE(parse_resource_name(std::string(53, 'a')).error().message().find("must be 63 characters or less"),
            std::string::npos);
  for (const auto* bad :
       {"foo.com/gpu", "", "nvidia.com/", "GPU", "-gpu", "gpu-", "a..b", "a b", "gpu.", "a_b"}) {
    const auto name = parse_resource_name(bad);
    ASSERT_FALSE(name) << bad;
    EXPECT_NE(name.error().message().find("incorrect format for resource name 'nvidia.com/"),
              std::string::npos)
        << bad;
  }
}

}  // namespace
}  // namespace gpulet::config
