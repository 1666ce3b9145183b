#include "config/values.h"

#include <gtest/gtest.h>

#include <map>

namespace gpulet::config {
namespace {

TEST(Values, GoBooleans) {
  for (const auto* yes : {"1", "t", "T", "TRUE", "true", "True"}) EXPECT_EQ(parse_go_bool(yes), true) << yes;
  for (const auto* no : {"0", "f", "F", "FALSE", "false", "False"}) EXPECT_EQ(parse_go_bool(no), false) << no;
  for (const auto* none : {"", "yes", "on", "tRUE", "2", " true"}) EXPECT_FALSE(parse_go_bool(none)) << none;
}

TEST(Values, WholeNumbersInAnyNotation) {
  for (const auto& [text, number] :
       std::map<std::string, std::uint64_t>{{"0", 0},
                                            {"4", 4},
                                            {"4.0", 4},
                                            {"4.", 4},
                                            {"1.5e9", 1'500'000'000},
                                            {"1E2", 100},
                                            {"18446744073709551615", 18446744073709551615u}})
    EXPECT_EQ(parse_whole_number(text), number) << text;
  for (const char* text :
       {"", "4.5", "-4", "-4.0", "+4.0", "four", "4.0x", "1e400", "1e19", "inf", "nan", ".", "0x4", "1_000"})
    EXPECT_FALSE(parse_whole_number(text)) << text;
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
