#include "config/power_settings.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "config/load.h"
#include "config/test_sources.h"

namespace gpulet::config {
namespace {

// The section is on line 3.
Sources power_section(const std::string& section) {
  return file_source("gpulet:\n  power:\n    " + section + "\n");
}

PowerSettings power_of(const std::string& section) {
  const auto loaded = load(power_section(section));
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().full_message());
  return loaded ? loaded->config.gpulet.power : PowerSettings{};
}

std::string power_error(const std::string& section) {
  const auto checked = check_config(power_section(section));
  EXPECT_EQ(checked.errors.size(), 1u) << section;
  return checked.errors.empty() ? "" : checked.errors[0].full_message();
}

TEST(PowerSettings, LimitsAndClocksHaveOneForm) {
  for (const auto& [text, limit] : std::vector<std::pair<std::string, PowerLimit>>{
           {"350", {350, 0}}, {"350W", {350, 0}}, {"80%", {0, 80}}, {"120%", {0, 120}}}) {
    EXPECT_EQ(parse_power_limit(text), limit) << text;
    EXPECT_EQ(parse_power_limit(power_limit_text(limit)), limit) << text;
  }
  for (const char* bad : {"", "0", "0%", "%", "W", "-1", "350 W", "3.5", "80%%", "1001%", "100001", "350w"})
    EXPECT_FALSE(parse_power_limit(bad)) << bad;
  EXPECT_EQ(parse_clock_range("1200"), (ClockRange{1200, 1200}));
  EXPECT_EQ(parse_clock_range("210-1410"), (ClockRange{210, 1410}));
  EXPECT_EQ(clock_range_text({210, 1410}), "210-1410");
  EXPECT_EQ(clock_range_text({1200, 1200}), "1200");
  for (const char* bad : {"", "0", "-", "210-", "-210", "1410-210", "0-210", "210-1410-1500", "1200MHz"})
    EXPECT_FALSE(parse_clock_range(bad)) << bad;
}

TEST(PowerSettings, AreOffByDefault) {
  EXPECT_EQ(power_of(""), PowerSettings{});
  EXPECT_EQ(power_of("rules: []"), PowerSettings{});
}

TEST(PowerSettings, AreRead) {
  const auto power = power_of(
      "rules: [{devices: [0-3], model: '*H100*', nodeLabel: pool=night, limit: 80%, clocks: {graphics: "
      "210-1410, memory: 2619}, schedule: [{days: [Mon-Fri, Sun], from: '22:00', to: '06:30', limit: 60%}, "
      "{days: [Sat], clocks: {graphics: 1200}}]}, {}]\n    podAnnotation: {enabled: true, min: 200W}");
  ASSERT_EQ(power.rules.size(), 2u);
  const auto& rule = power.rules[0];
  EXPECT_EQ(rule.devices, GpuSelection((GpuRefs{{.first = 0, .last = 3, .uuid = {}}})));
  EXPECT_EQ(rule.model, "*H100*");
  EXPECT_EQ(rule.node_label, (NodeLabel{"pool", "night"}));
  EXPECT_EQ(rule.values, (PowerValues{PowerLimit{0, 80}, ClockRange{210, 1410}, ClockRange{2619, 2619}}));
  ASSERT_EQ(rule.schedule.size(), 2u);
  EXPECT_EQ(rule.schedule[0], (PowerPeriod{0b0111111, 22 * 60, 6 * 60 + 30, {PowerLimit{0, 60}}}));
  EXPECT_EQ(rule.schedule[1], (PowerPeriod{0b1000000, 0, 0, {std::nullopt, ClockRange{1200, 1200}}}));
  EXPECT_EQ(rule.position, "x.yaml:3:13");
  EXPECT_EQ(power.rules[1], PowerRule{}) << "it leaves GPUs alone";
  EXPECT_TRUE(power.pod_annotation);
  EXPECT_EQ(power.pod_min, (PowerLimit{200, 0}));
}

TEST(PowerSettings, ARangeOfDaysMayPassTheWeeksEnd) {
  EXPECT_EQ(power_of("rules: [{schedule: [{days: [Fri-Mon], limit: 300}]}]").rules.at(0).schedule.at(0).days,
            0b1100011);
}

TEST(PowerSettings, MistakesNameTheirPlace) {
  const std::string at = "x.yaml:3:", rule = "gpulet.power.rules[0]", period = rule + ".schedule[0]";
  const std::string limit =
      "expected watts such as 350W, or percent of the default limit such as 80%, found ";
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "5: gpulet.power: expected a mapping with rules and podAnnotation, found a list"},
           {"rules: [{limit: 3.5}]", "21: " + rule + ".limit: " + limit + "'3.5'"},
           {"rules: [{limit: [3]}]", "21: " + rule + ".limit: " + limit + "a list"},
           {"rules: [{clocks: {graphics: 9-1}}]",
            "33: " + rule +
                ".clocks.graphics: expected MHz such as 1200, or a range such as 210-1410, found '9-1'"},
           {"rules: [{schedule: [{from: '22:00', limit: 3}]}]",
            "25: " + period + ": expected both from and to, or neither for whole days"},
           {"rules: [{schedule: [{from: '24:00', to: '01:00', limit: 3}]}]",
            "32: " + period +
                ".from: expected a time of day such as \"22:00\", found the quoted string '24:00'"},
           {"rules: [{schedule: [{days: [Mo], limit: 3}]}]",
            "33: " + period + ".days: expected a day such as Mon, or days such as Mon-Fri, found 'Mo'"},
           {"rules: [{schedule: [{days: [], limit: 3}]}]",
            "32: " + period + ".days: an empty list; expected at least one"},
           {"rules: [{schedule: [{days: [Mon]}]}]",
            "25: " + period + ": expected limit or clocks of the period"},
           {"rules: [{nodeLabel: 'a b'}]",
            "25: " + rule + ".nodeLabel: expected a label: key or key=value, found the quoted string 'a b'"},
           {"rules: [{devices: [9999]}]",
            "24: " + rule +
                ".devices: expected an index, a range such as 0-3, GPU-… or a PCI address, found '9999'"},
           {"podAnnotation: {min: 0}", "26: gpulet.power.podAnnotation.min: " + limit + "'0'"},
       }) {
    EXPECT_EQ(power_error(text), at + error);
  }
  EXPECT_NE(power_error("rules: [{wattage: 3}]").find("wattage"), std::string::npos);
}

TEST(PowerSettings, ListsAreBounded) {
  std::string rules = "rules: [", periods = "rules: [{schedule: [";
  for (std::size_t i = 0; i <= kMaxPowerRules; ++i) rules += "{limit: 3},";
  for (std::size_t i = 0; i <= kMaxPowerPeriods; ++i) periods += "{limit: 3},";
  EXPECT_NE(power_error(rules + "]").find("expected at most 256 rules"), std::string::npos);
  EXPECT_NE(power_error(periods + "]}]").find("expected at most 64 periods"), std::string::npos);
}

}  // namespace
}  // namespace gpulet::config
