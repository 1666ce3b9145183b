#include "health/policy.h"

#include <gtest/gtest.h>

#include <set>

#include "base/file.h"

namespace gpulet::health {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(Settings, HaveDefaultsWithinTheirBounds) {
  std::set<std::string_view> keys;
  for (const auto& setting : settings()) {
    EXPECT_TRUE(keys.insert(setting.key).second) << setting.key;
    EXPECT_LE(setting.least, value_of({}, setting)) << setting.key;
    EXPECT_GE(setting.most, value_of({}, setting)) << setting.key;
    EXPECT_FALSE(setting.says.empty() || setting.less.empty() || setting.more.empty()) << setting.key;
    for (const auto value : {setting.least, setting.most}) {
      Policy policy;
      ASSERT_TRUE(set(policy, setting, value)) << setting.key;
      EXPECT_EQ(value_of(policy, setting), value) << setting.key;
    }
    Policy policy;
    const auto refused = set(policy, setting, setting.most + 1);
    ASSERT_FALSE(refused) << setting.key;
    EXPECT_EQ(refused.error().about(), setting.key);
    EXPECT_EQ(value_of(policy, setting), value_of({}, setting));
  }
}

// The page lists every setting and every class, with its default, so that neither is ever missing there.
TEST(Settings, AreInTheDocument) {
  const auto page = read_file("docs/health.md").value_or("");
  for (const auto& setting : settings()) {
    const bool time = std::holds_alternative<Duration Policy::*>(setting.field);
    const auto value = value_of({}, setting);
    std::string shown = std::to_string(value);
    const std::pair<std::uint64_t, const char*> units[] = {
        {86'400'000, "d"}, {3'600'000, "h"}, {60'000, "min"}, {1000, "s"}};
    for (const auto& [unit, suffix] : units) {
      if (!time || value % unit != 0) continue;
      shown = std::to_string(value / unit) + " " + suffix;
      break;
    }
    const auto row = "| `" + std::string(setting.key) + "` | " + shown + " |";
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
  for (const auto& rule : fault_rules()) {
    const auto row = "| `" + std::string(rule.name) + "` | " + std::string(name(rule.effect)) + " |";
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

TEST(Rules, AreNamedAndWhole) {
  for (const auto& rule : fault_rules()) {
    EXPECT_EQ(&rule_of(rule.fault_class), &rule);
    EXPECT_EQ(parse_fault_class(rule.name), rule.fault_class);
    EXPECT_FALSE(rule.comes_back.empty()) << rule.name;
    EXPECT_EQ(parse_effect(name(rule.effect)), rule.effect);
    EXPECT_EQ(rule.says.empty(), rule.fault_class <= FaultClass::kXidWatched) << rule.name;
    // Only its own kind of proof ends what withdraws a device; a check alone suffices where nobody knows the
    // fault.
    if (rule.effect >= Effect::kQuarantine) {
      EXPECT_NE(rule.checks & kCheckHandle, 0u) << rule.name;
    }
    EXPECT_EQ(rule.want == Want::kReading, rule.source != Source::kOperator) << rule.name;
  }
  EXPECT_EQ(parse_fault_class("sick"), std::nullopt);
  EXPECT_EQ(parse_effect("sick"), std::nullopt);
}

TEST(Hold, GrowsUpToItsLimit) {
  Policy policy;
  EXPECT_EQ(policy.hold_of(FaultClass::kXidReset, 0), seconds(30));
  EXPECT_EQ(policy.hold_of(FaultClass::kXidReset, 3), minutes(4));
  EXPECT_EQ(policy.hold_of(FaultClass::kXidReset, 1'000'000), hours(1));
  EXPECT_EQ(policy.hold_of(FaultClass::kDriverAway, 5), Duration::zero());
  EXPECT_EQ(policy.hold_of(FaultClass::kNvLinkErrors, 5), minutes(10));
  policy.holds[FaultClass::kXidReset] = hours(2);
  EXPECT_EQ(policy.hold_of(FaultClass::kXidReset, 0), hours(2));
  EXPECT_EQ(policy.hold_of(FaultClass::kXidReset, 4), hours(2));
  policy.growth = 1;
  EXPECT_EQ(policy.hold_of(FaultClass::kSilent, 9), seconds(30));
}

}  // namespace
}  // namespace gpulet::health
