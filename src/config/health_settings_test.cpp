#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "config/load.h"
#include "config/print.h"
#include "config/test_sources.h"

namespace gpulet::config {
namespace {

using namespace std::chrono_literals;
using health::Effect;
using health::FaultClass;

TEST(HealthSettings, EveryOneHasAFlagAVariableAndAPlaceInTheFile) {
  for (const auto& setting : health::settings()) {
    const auto* row = setting_of_flag("health-" + std::string(setting.key));
    ASSERT_NE(row, nullptr) << setting.key;
    ASSERT_EQ(row->environment.size(), 1u);
    EXPECT_TRUE(row->environment[0].starts_with("GPULET_HEALTH_"));
    EXPECT_TRUE(row->path.starts_with("gpulet.health."));
    EXPECT_EQ(row->path.find('-'), std::string_view::npos) << row->path;
  }
  EXPECT_NE(setting_of_path("gpulet.health.nvlinkErrorsPerMinute"), nullptr);
  EXPECT_EQ(setting_of_flag("health-poll-interval")->environment[0], "GPULET_HEALTH_POLL_INTERVAL");
}

TEST(HealthSettings, EachOneIsReadFromEachPlaceWithinItsBounds) {
  for (const auto& setting : health::settings()) {
    const auto* row = setting_of_flag("health-" + std::string(setting.key));
    const bool duration = row->kind == Kind::kDuration;
    const auto text = [&](std::uint64_t value) { return std::to_string(value) + (duration ? "ms" : ""); };
    for (const auto value : {setting.least, setting.most}) {
      Sources sources;
      sources.flags[std::string(row->flag)] = {text(value)};
      auto loaded = load(sources);
      ASSERT_TRUE(loaded) << loaded.error().text();
      EXPECT_EQ(value_of(loaded->config.gpulet.health, setting), value) << setting.key;
      sources = {};
      sources.environment[std::string(row->environment[0])] = text(value);
      loaded = load(sources);
      ASSERT_TRUE(loaded) << loaded.error().text();
      EXPECT_EQ(value_of(loaded->config.gpulet.health, setting), value) << setting.key;
      const auto key = std::string(row->path.substr(row->path.rfind('.') + 1));
      loaded = load(file("gpulet: {health: {" + key + ": " + text(value) + "}}"));
      ASSERT_TRUE(loaded) << loaded.error().text();
      EXPECT_EQ(value_of(loaded->config.gpulet.health, setting), value) << setting.key;
    }
    Sources sources;
    sources.flags[std::string(row->flag)] = {text(setting.most + 1)};
    EXPECT_NE(error_of(sources).find("is not between"), std::string::npos) << setting.key;
    if (setting.least == 0) continue;
    sources.flags[std::string(row->flag)] = {text(setting.least - 1)};
    EXPECT_NE(error_of(sources).find("is not between"), std::string::npos) << setting.key;
  }
}

TEST(HealthSettings, WhatIsNoNumberIsNone) {
  EXPECT_NE(error_of(file("gpulet: {health: {growth: two}}")).find("is not a whole number"),
            std::string::npos);
  EXPECT_NE(error_of(file("gpulet: {health: {growth: \"2\"}}")).find("a whole number"), std::string::npos);
  EXPECT_NE(error_of(file("gpulet: {health: {growth: [2]}}")).find("a whole number"), std::string::npos);
  EXPECT_NE(error_of(file("gpulet: {health: {hold: 30}}")).find("is not a duration"), std::string::npos);
  EXPECT_NE(error_of(file("gpulet: {health: {holt: 30s}}")).find("did you mean hold?"), std::string::npos);
}

TEST(HealthSettings, TrustAndClasses) {
  const auto loaded =
      load(file("gpulet:\n  health:\n    trustDriver: always\n    classes:\n"
                "      thermal: {effect: quarantine, hold: 1m}\n      power: {effect: flag}\n"
                "      xid-reset: {hold: 0s}\n"));
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& policy = loaded->config.gpulet.health;
  EXPECT_EQ(policy.trust_driver, health::TrustDriver::kAlways);
  EXPECT_EQ(policy.effect(FaultClass::kThermal), Effect::kQuarantine);
  EXPECT_EQ(policy.effect(FaultClass::kPower), Effect::kFlag);
  EXPECT_EQ(policy.effect(FaultClass::kXidReset), Effect::kQuarantine);
  EXPECT_EQ(policy.hold_of(FaultClass::kThermal, 0), 1min);
  EXPECT_EQ(policy.hold_of(FaultClass::kXidReset, 0), 0s);
  EXPECT_EQ(policy.hold_of(FaultClass::kXidEcc, 0), 30s);

  const auto effect = [](const std::string& name, const std::string& value) {
    return error_of(file("gpulet: {health: {classes: {" + name + ": " + value + "}}}"));
  };
  EXPECT_NE(effect("thermal", "{effect: burn}").find("would do"), std::string::npos);
  EXPECT_NE(effect("termal", "{effect: flag}").find("did you mean thermal?"), std::string::npos);
  EXPECT_NE(effect("thermal", "{hold: -1s}").find("is not between 0s and 720h"), std::string::npos);
  // Each class has both, by its own name.
  for (const auto& rule : health::fault_rules()) {
    const auto given =
        load(file("gpulet: {health: {classes: {" + std::string(rule.name) + ": {effect: lose, hold: 7s}}}}"));
    ASSERT_TRUE(given) << given.error().text();
    EXPECT_EQ(given->config.gpulet.health.effect(rule.fault_class), Effect::kLose) << rule.name;
    EXPECT_EQ(given->config.gpulet.health.holds.at(rule.fault_class), 7s) << rule.name;
  }
}

// What is printed is read back as the same, and names no class of which nothing was said.
TEST(HealthSettings, ArePrinted) {
  const auto loaded =
      load(file("gpulet: {health: {pollInterval: 5m, repeatCount: 7, classes: {power: {effect: flag}}}}"));
  ASSERT_TRUE(loaded);
  const auto printed = print_yaml(*loaded);
  EXPECT_NE(printed.find("repeatCount: 7  # from file"), std::string::npos) << printed;
  EXPECT_EQ(printed.find("xid-reset"), std::string::npos);
  const auto again = load(file(printed));
  ASSERT_TRUE(again) << again.error().text();
  for (const auto& setting : health::settings()) {
    EXPECT_EQ(value_of(again->config.gpulet.health, setting),
              value_of(loaded->config.gpulet.health, setting));
  }
  EXPECT_EQ(again->config.gpulet.health.effects, loaded->config.gpulet.health.effects);
}

}  // namespace
}  // namespace gpulet::config
