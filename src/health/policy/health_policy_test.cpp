#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "health/policy/health_policy.h"
#include "health/state/device_status.h"
#include "health/xid/xid_catalogue.h"

namespace gpulet::health {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;

TEST(PolicySettings, HaveDefaultsWithinTheirBounds) {
  std::set<std::string_view> keys;
  for (const auto& setting : policy_settings()) {
    EXPECT_TRUE(keys.insert(setting.key).second) << setting.key;
    EXPECT_LE(setting.least, policy_value({}, setting)) << setting.key;
    EXPECT_GE(setting.most, policy_value({}, setting)) << setting.key;
    EXPECT_FALSE(setting.help.empty() || setting.cost_of_less.empty() || setting.cost_of_more.empty())
        << setting.key;
    for (const auto value : {setting.least, setting.most}) {
      Policy policy;
      ASSERT_TRUE(set_policy_value(policy, setting, value)) << setting.key;
      EXPECT_EQ(policy_value(policy, setting), value) << setting.key;
    }
    Policy policy;
    const auto refused = set_policy_value(policy, setting, setting.most + 1);
    ASSERT_FALSE(refused) << setting.key;
    EXPECT_EQ(refused.error().subject(), setting.key);
    EXPECT_EQ(policy_value(policy, setting), policy_value({}, setting));
  }
}

// docs/health.md lists every class with its default; docs/config.md has the settings.
TEST(FaultRules, AreInTheDocs) {
  const auto page = read_file("docs/health.md").value_or("");
  for (const auto& rule : fault_rules()) {
    const auto row = "| `" + std::string(rule.name) + "` | " + std::string(enum_name(rule.effect)) + " |";
    EXPECT_NE(page.find(row), std::string::npos) << row;
  }
}

TEST(FaultRules, AreNamedAndComplete) {
  for (const auto& rule : fault_rules()) {
    EXPECT_EQ(&fault_rule(rule.fault_class), &rule);
    EXPECT_EQ(parse_fault_class(rule.name), rule.fault_class);
    EXPECT_FALSE(rule.recovery_text.empty()) << rule.name;
    EXPECT_EQ(parse_effect(enum_name(rule.effect)), rule.effect);
    EXPECT_EQ(rule.summary.empty(), rule.fault_class <= FaultClass::kXidWatched) << rule.name;
    // Only its own kind of proof ends what withdraws a device; a check alone suffices where nobody knows the
    // fault.
    if (rule.effect >= Effect::kQuarantine) {
      EXPECT_NE(rule.checks & kCheckHandle, 0u) << rule.name;
    }
    EXPECT_EQ(rule.condition == RecoveryCondition::kReadingClear, rule.source != Source::kOperator)
        << rule.name;
  }
  EXPECT_EQ(parse_fault_class("sick"), std::nullopt);
  EXPECT_EQ(parse_effect("sick"), std::nullopt);
}

TEST(HoldTime, GrowsUpToItsLimit) {
  Policy policy;
  EXPECT_EQ(policy.hold_time(FaultClass::kXidReset, 0), seconds(30));
  EXPECT_EQ(policy.hold_time(FaultClass::kXidReset, 3), minutes(4));
  EXPECT_EQ(policy.hold_time(FaultClass::kXidReset, 1'000'000), hours(1));
  EXPECT_EQ(policy.hold_time(FaultClass::kDriverAway, 5), Duration::zero());
  EXPECT_EQ(policy.hold_time(FaultClass::kNvLinkErrors, 5), minutes(10));
  policy.class_holds[FaultClass::kXidReset] = hours(2);
  EXPECT_EQ(policy.hold_time(FaultClass::kXidReset, 0), hours(2));
  EXPECT_EQ(policy.hold_time(FaultClass::kXidReset, 4), hours(2));
  policy.hold_growth_factor = 1;
  EXPECT_EQ(policy.hold_time(FaultClass::kSilent, 9), seconds(30));
}

}  // namespace

// The pages that people read are complete: every XID, every state, every class of fault with its runbook.

namespace {

std::vector<std::string> lines_of(const std::string& path) {
  const auto content = read_file(path);
  EXPECT_TRUE(content) << (content ? "" : content.error().full_message());
  return text::split(content.value_or(""), '\n');
}

std::vector<std::string> trimmed(std::vector<std::string> cells) {
  for (auto& cell : cells) cell = std::string(text::trim(cell));
  return cells;
}

// First cell without markup → the row's cells, of every table of the page; a duplicate fails.
std::map<std::string, std::vector<std::string>> rows_of(const std::vector<std::string>& lines) {
  std::map<std::string, std::vector<std::string>> rows;
  for (const auto& line : lines) {
    if (!line.starts_with("| ")) continue;
    auto cells = trimmed(text::split(line, '|'));
    std::string key = cells.at(1);
    std::erase(key, '`');
    EXPECT_TRUE(rows.emplace(key, cells).second) << "twice: " << line;
  }
  return rows;
}

TEST(HealthDocs, HaveEveryXid) {
  auto lines = lines_of("docs/xids.md");
  // The second table, of NVLink 5, has rows by unit.
  lines.erase(std::ranges::find(lines, "## NVLink 5: XIDs 144 to 150"), lines.end());
  const auto page = rows_of(lines);
  std::size_t codes = 0;
  for (const auto& line : lines_of("src/health/xid/xids.tsv")) {
    const auto cells = text::split(line, '\t');
    if (cells.size() != 7 || !text::parse_unsigned(cells[0])) continue;
    ++codes;
    const auto row = page.find(cells[0]);
    ASSERT_NE(row, page.end()) << cells[0];
    const auto& told = row->second;
    EXPECT_EQ(told.at(2), cells[1]) << cells[0];
    EXPECT_EQ(told.at(3), cells[2]) << cells[0];
    EXPECT_EQ(told.at(4), cells[4] == "-" ? "" : cells[4]) << cells[0];
    EXPECT_EQ(told.at(5), cells[5]) << cells[0];
  }
  EXPECT_EQ(codes, xids().size());
  EXPECT_EQ(page.size(), codes + 1);  // and the head
}

TEST(HealthDocs, HaveEveryState) {
  const auto lines = lines_of("docs/health.md");
  for (const auto state : kDeviceStates) {
    const auto row =
        "| " + std::string(enum_name(state)) + " | " + (is_allocatable(state) ? "yes" : "no") + " |";
    EXPECT_EQ(std::ranges::count_if(lines, [&](const auto& line) { return line.starts_with(row); }), 1)
        << row;
  }
}

TEST(HealthDocs, HaveEveryClassWithARunbook) {
  const auto lines = lines_of("docs/health.md");
  const auto begin = std::ranges::find(lines, "## Runbook");
  ASSERT_NE(begin, lines.end());
  std::vector<std::string> headings, classes;
  for (auto line = begin; line != lines.end(); ++line) {
    if (!line->starts_with("### ")) continue;
    headings.push_back(line->substr(4));
    EXPECT_GT((line + 2)->size(), 20u) << *line;
  }
  for (const auto& rule : fault_rules()) {
    classes.emplace_back(rule.name);
    const auto row = "| `" + classes.back() + "` | " + std::string(enum_name(rule.effect)) + " |";
    EXPECT_EQ(std::count_if(lines.begin(), begin, [&](const auto& line) { return line.starts_with(row); }), 1)
        << row;
  }
  EXPECT_EQ(headings, classes);
}

}  // namespace
}  // namespace gpulet::health
