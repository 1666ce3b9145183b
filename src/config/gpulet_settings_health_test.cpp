#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "config/load.h"
#include "config/test_sources.h"

namespace gpulet::config {
namespace {

using namespace std::chrono_literals;
using health::Effect;
using health::FaultClass;

TEST(HealthSettings, EachHasFlagVariableAndFileKey) {
  for (const auto& setting : health::policy_settings()) {
    const auto* row = find_setting_by_flag("health-" + std::string(setting.key));
    ASSERT_NE(row, nullptr) << setting.key;
    ASSERT_EQ(row->environment.size(), 1u);
    EXPECT_TRUE(row->environment[0].starts_with("GPULET_HEALTH_"));
    EXPECT_TRUE(row->path.starts_with("gpulet.health."));
    EXPECT_EQ(row->path.find('-'), std::string_view::npos) << row->path;
  }
  EXPECT_NE(find_setting_by_path("gpulet.health.nvlinkErrorsPerMinute"), nullptr);
  EXPECT_EQ(find_setting_by_flag("health-poll-interval")->environment[0], "GPULET_HEALTH_POLL_INTERVAL");
}

TEST(HealthSettings, EachIsReadFromEachSourceWithinItsBounds) {
  for (const auto& setting : health::policy_settings()) {
    const auto* row = find_setting_by_flag("health-" + std::string(setting.key));
    const bool duration = row->kind == Kind::kDuration;
    const auto text = [&](std::uint64_t value) { return std::to_string(value) + (duration ? "ms" : ""); };
    for (const auto value : {setting.least, setting.most}) {
      Sources sources;
      sources.flags[std::string(row->flag)] = {text(value)};
      auto loaded = load(sources);
      ASSERT_TRUE(loaded) << loaded.error().full_message();
      EXPECT_EQ(policy_value(loaded->config.gpulet.health, setting), value) << setting.key;
      sources = {};
      sources.environment[std::string(row->environment[0])] = text(value);
      loaded = load(sources);
      ASSERT_TRUE(loaded) << loaded.error().full_message();
      EXPECT_EQ(policy_value(loaded->config.gpulet.health, setting), value) << setting.key;
      const auto key = std::string(row->path.substr(row->path.rfind('.') + 1));
      loaded = load(file_source("gpulet: {health: {" + key + ": " + text(value) + "}}"));
      ASSERT_TRUE(loaded) << loaded.error().full_message();
      EXPECT_EQ(policy_value(loaded->config.gpulet.health, setting), value) << setting.key;
    }
    Sources sources;
    sources.flags[std::string(row->flag)] = {text(setting.most + 1)};
    EXPECT_NE(load_error(sources).find("is not between"), std::string::npos) << setting.key;
    if (setting.least == 0) continue;
    sources.flags[std::string(row->flag)] = {text(setting.least - 1)};
    EXPECT_NE(load_error(sources).find("is not between"), std::string::npos) << setting.key;
  }
}

TEST(HealthSettings, RejectsInvalidNumbers) {
  EXPECT_NE(
      load_error(file_source("gpulet: {health: {holdGrowthFactor: two}}")).find("is not a whole number"),
      std::string::npos);
  EXPECT_NE(load_error(file_source("gpulet: {health: {holdGrowthFactor: \"2\"}}")).find("a whole number"),
            std::string::npos);
  EXPECT_NE(load_error(file_source("gpulet: {health: {holdGrowthFactor: [2]}}")).find("a whole number"),
            std::string::npos);
  EXPECT_NE(load_error(file_source("gpulet: {health: {recoveryHold: 30}}")).find("is not a duration"),
            std::string::npos);
  EXPECT_NE(
      load_error(file_source("gpulet: {health: {recoveryHolt: 30s}}")).find("did you mean recoveryHold?"),
      std::string::npos);
}

TEST(HealthSettings, TrustAndClasses) {
  const auto loaded =
      load(file_source("gpulet:\n  health:\n    trustRecoveryAction: always\n    classes:\n"
                       "      thermal: {effect: quarantine, recoveryHold: 1m}\n      power: {effect: flag}\n"
                       "      xid-reset: {recoveryHold: 0s}\n"));
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& policy = loaded->config.gpulet.health;
  EXPECT_EQ(policy.trust_recovery_action, health::RecoveryActionTrust::kAlways);
  EXPECT_EQ(policy.effect(FaultClass::kThermal), Effect::kQuarantine);
  EXPECT_EQ(policy.effect(FaultClass::kPower), Effect::kFlag);
  EXPECT_EQ(policy.effect(FaultClass::kXidReset), Effect::kQuarantine);
  EXPECT_EQ(policy.hold_time(FaultClass::kThermal, 0), 1min);
  EXPECT_EQ(policy.hold_time(FaultClass::kXidReset, 0), 0s);
  EXPECT_EQ(policy.hold_time(FaultClass::kXidEcc, 0), 30s);

  const auto effect = [](const std::string& name, const std::string& value) {
    return load_error(file_source("gpulet: {health: {classes: {" + name + ": " + value + "}}}"));
  };
  EXPECT_NE(effect("thermal", "{effect: burn}").find("expected "), std::string::npos);
  EXPECT_NE(effect("termal", "{effect: flag}").find("did you mean thermal?"), std::string::npos);
  EXPECT_NE(effect("thermal", "{recoveryHold: -1s}").find("is not between 0s and 720h"), std::string::npos);
  // Each class has both, by its own name.
  for (const auto& rule : health::fault_rules()) {
    const auto given = load(file_source("gpulet: {health: {classes: {" + std::string(rule.name) +
                                        ": {effect: lose, recoveryHold: 7s}}}}"));
    ASSERT_TRUE(given) << given.error().full_message();
    EXPECT_EQ(given->config.gpulet.health.effect(rule.fault_class), Effect::kLose) << rule.name;
    EXPECT_EQ(given->config.gpulet.health.class_holds.at(rule.fault_class), 7s) << rule.name;
  }
}

// The printed config reads back as the same, and names only classes that were set.
TEST(HealthSettings, ArePrinted) {
  const auto loaded =
      load(file_source("gpulet: {health: {pollInterval: 5m, applicationErrorThreshold: 7, classes: {power: "
                       "{effect: flag}}}}"));
  ASSERT_TRUE(loaded);
  const auto printed = print_yaml(*loaded);
  EXPECT_NE(printed.find("applicationErrorThreshold: 7  # from file"), std::string::npos) << printed;
  EXPECT_EQ(printed.find("xid-reset"), std::string::npos);
  const auto again = load(file_source(printed));
  ASSERT_TRUE(again) << again.error().full_message();
  for (const auto& setting : health::policy_settings()) {
    EXPECT_EQ(policy_value(again->config.gpulet.health, setting),
              policy_value(loaded->config.gpulet.health, setting));
  }
  EXPECT_EQ(again->config.gpulet.health.class_effects, loaded->config.gpulet.health.class_effects);
}

}  // namespace

namespace {

using health::FaultClass;
using health::Grace;
using health::Severity;
using std::chrono::minutes;

Result<LoadedConfig> from_file(const std::string& text) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = text;
  return load(sources);
}

std::string faults_error_of(const std::string& text) {
  const auto loaded = from_file(text);
  return loaded ? "" : loaded.error().full_message();
}

TEST(FaultsSettings, DefaultsReportOnTheNodeWithoutTaintsAndEviction) {
  const auto loaded = from_file("");
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& faults = loaded->config.gpulet.faults;
  const FaultSettings standard;
  EXPECT_TRUE(faults.condition);
  EXPECT_TRUE(faults.label);
  EXPECT_TRUE(faults.pod_events);
  EXPECT_FALSE(faults.pod_annotations);
  EXPECT_TRUE(faults.taints.empty());
  EXPECT_FALSE(faults.eviction.enabled);
  EXPECT_EQ(faults.eviction.dry_run, standard.eviction.dry_run);
  EXPECT_EQ(faults.eviction.draining, standard.eviction.draining);
  EXPECT_EQ(faults.eviction.quarantined, standard.eviction.quarantined);
  EXPECT_EQ(faults.eviction.lost, standard.eviction.lost);
  EXPECT_EQ(faults.eviction.access_lost, standard.eviction.access_lost);
  EXPECT_EQ(faults.eviction.bare_pods, standard.eviction.bare_pods);
  EXPECT_EQ(faults.eviction.max_evictions, standard.eviction.max_evictions);
  EXPECT_EQ(faults.eviction.max_evictions_window, standard.eviction.max_evictions_window);
  EXPECT_EQ(faults.eviction.max_unhealthy_gpus_percent, standard.eviction.max_unhealthy_gpus_percent);
  EXPECT_EQ(faults.eviction.unhealthy_gpus_window, standard.eviction.unhealthy_gpus_window);
  EXPECT_TRUE(faults.eviction.class_graces.empty());
  EXPECT_EQ(faults.max_unhealthy_nodes_percent, standard.max_unhealthy_nodes_percent);
}

TEST(FaultsSettings, AllAreReadFromTheFile) {
  const auto loaded = from_file(R"(
gpulet:
  faults:
    condition: false
    label: true
    podEvents: false
    podAnnotations: true
    taints: {degraded: PreferNoSchedule, withdrawn: none, lost: NoExecute}
    eviction:
      enabled: true
      dryRun: true
      draining: stay
      quarantined: finish=30m
      lost: finish
      accessLost: finish=1h
      barePods: true
      maxEvictions: 3
      maxEvictionsWindow: 10m
      maxUnhealthyGpusPercent: 25
      unhealthyGpusWindow: 1h
      maxUnhealthyNodesPercent: 10
      classes: {xid-reset: evict, driver-away: finish=1h}
)");
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& faults = loaded->config.gpulet.faults;
  EXPECT_FALSE(faults.condition);
  EXPECT_FALSE(faults.pod_events);
  EXPECT_TRUE(faults.pod_annotations);
  EXPECT_EQ(faults.taints, (std::map<Severity, std::string>{{Severity::kDegraded, "PreferNoSchedule"},
                                                            {Severity::kLost, "NoExecute"}}));
  const auto& eviction = faults.eviction;
  EXPECT_TRUE(eviction.enabled);
  EXPECT_TRUE(eviction.dry_run);
  EXPECT_EQ(eviction.draining.kind, Grace::Kind::kStay);
  EXPECT_EQ(eviction.quarantined, (Grace{Grace::Kind::kFinish, minutes(30)}));
  EXPECT_EQ(eviction.lost, (Grace{Grace::Kind::kFinish, std::nullopt}));
  EXPECT_EQ(eviction.access_lost, (Grace{Grace::Kind::kFinish, minutes(60)}));
  EXPECT_TRUE(eviction.bare_pods);
  EXPECT_EQ(eviction.max_evictions, 3u);
  EXPECT_EQ(eviction.max_evictions_window, minutes(10));
  EXPECT_EQ(eviction.max_unhealthy_gpus_percent, 25u);
  EXPECT_EQ(eviction.unhealthy_gpus_window, minutes(60));
  EXPECT_EQ(faults.max_unhealthy_nodes_percent, 10u);
  EXPECT_EQ(eviction.class_graces,
            (std::map<FaultClass, Grace>{{FaultClass::kXidReset, {Grace::Kind::kEvict, std::nullopt}},
                                         {FaultClass::kDriverAway, {Grace::Kind::kFinish, minutes(60)}}}));
}

TEST(FaultsSettings, FlagsAndVariablesOverrideTheFile) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = "gpulet:\n  faults:\n    eviction:\n      enabled: false\n      lost: stay\n";
  sources.flags["faults-eviction"] = {"true"};
  sources.environment["GPULET_FAULTS_EVICTION_LOST"] = "finish=1d";
  sources.environment["GPULET_FAULTS_TAINT_LOST"] = "NoSchedule";
  const auto loaded = load(sources);
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& faults = loaded->config.gpulet.faults;
  EXPECT_TRUE(faults.eviction.enabled);
  EXPECT_EQ(faults.eviction.lost, (Grace{Grace::Kind::kFinish, std::chrono::hours(24)}));
  EXPECT_EQ(faults.taints.at(Severity::kLost), "NoSchedule");
}

TEST(FaultsSettings, ErrorsHavePositions) {
  const std::string eviction = "gpulet:\n  faults:\n    eviction:\n      ";
  EXPECT_NE(
      faults_error_of(eviction + "lost: soon\n").find("'soon': expected stay, finish, evict or finish=TIME"),
      std::string::npos)
      << faults_error_of(eviction + "lost: soon\n");
  EXPECT_NE(faults_error_of(eviction + "lost: soon\n").find("node.yaml:4:"), std::string::npos);
  EXPECT_NE(faults_error_of(eviction + "maxUnhealthyGpusPercent: 101\n").find("is not between 0 and 100"),
            std::string::npos);
  EXPECT_NE(faults_error_of(eviction + "classes: {xid-resett: stay}\n").find("did you mean xid-reset?"),
            std::string::npos);
  EXPECT_NE(faults_error_of("gpulet:\n  faults:\n    taints: {lost: Never}\n").find("or NoExecute"),
            std::string::npos);
  EXPECT_NE(
      faults_error_of("gpulet:\n  faults:\n    label: false\n    eviction: {maxUnhealthyNodesPercent: 5}\n")
          .find("counts nodes by their label"),
      std::string::npos);
}

TEST(RebalanceSettings, AreOffByDefaultAndReadFromTheFile) {
  const auto standard = from_file("version: v1\n");
  ASSERT_TRUE(standard) << standard.error().full_message();
  EXPECT_EQ(standard->config.gpulet.rebalance, scheduler::RebalancePolicy{});
  EXPECT_FALSE(standard->config.gpulet.rebalance.enabled);
  const auto loaded = from_file(R"(
version: v1
gpulet:
  rebalance: {enabled: true, dryRun: true, thresholdPercent: 80, hotFor: 15s, horizon: 1h}
)");
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  EXPECT_EQ(loaded->config.gpulet.rebalance, (scheduler::RebalancePolicy{.enabled = true,
                                                                         .dry_run = true,
                                                                         .threshold_percent = 80,
                                                                         .hot_for = std::chrono::seconds(15),
                                                                         .horizon = std::chrono::hours(1)}));
}

TEST(RebalanceSettings, ReportWhatTheyNeed) {
  const auto error_of = [](const std::string& rest) {
    return faults_error_of("version: v1\ngpulet:\n  rebalance: {enabled: true}\n" + rest);
  };
  EXPECT_NE(error_of("  metrics: {enabled: false}\n")
                .find("node.yaml:3:24: gpulet.rebalance.enabled requires gpulet.metrics.enabled"),
            std::string::npos)
      << error_of("  metrics: {enabled: false}\n");
  EXPECT_NE(
      error_of("  metrics: {interval: 11m}\n")
          .find("gpulet.rebalance.hotFor is 10m, expected at least gpulet.metrics.interval, which is 11m"),
      std::string::npos)
      << error_of("  metrics: {interval: 11m}\n");
  EXPECT_NE(error_of("  placementLoad: ignore\n").find("requires gpulet.placementLoad: prefer or strict"),
            std::string::npos);
  EXPECT_NE(faults_error_of("version: v1\ngpulet: {rebalance: {thresholdPercent: 20}}\n")
                .find("is not between 50 and 100"),
            std::string::npos);
}

}  // namespace
}  // namespace gpulet::config
