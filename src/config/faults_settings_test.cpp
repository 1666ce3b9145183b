#include <gtest/gtest.h>

#include "config/load.h"

namespace gpulet::config {
namespace {

using health::FaultClass;
using health::Grace;
using health::Severity;
using std::chrono::minutes;

Result<Loaded> from_file(const std::string& text) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = text;
  return load(sources);
}

std::string faults_error_of(const std::string& text) {
  const auto loaded = from_file(text);
  return loaded ? "" : loaded.error().text();
}

TEST(FaultsSettings, ByDefaultTheNodeSpeaksAndNobodyIsTaintedOrMoved) {
  const auto loaded = from_file("");
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& faults = loaded->config.gpulet.faults;
  const FaultSettings standard;
  EXPECT_TRUE(faults.condition);
  EXPECT_TRUE(faults.label);
  EXPECT_TRUE(faults.pod_events);
  EXPECT_FALSE(faults.pod_notes);
  EXPECT_TRUE(faults.taints.empty());
  EXPECT_FALSE(faults.moving.enabled);
  EXPECT_EQ(faults.moving.dry_run, standard.moving.dry_run);
  EXPECT_EQ(faults.moving.drained, standard.moving.drained);
  EXPECT_EQ(faults.moving.quarantined, standard.moving.quarantined);
  EXPECT_EQ(faults.moving.lost, standard.moving.lost);
  EXPECT_EQ(faults.moving.bare_pods, standard.moving.bare_pods);
  EXPECT_EQ(faults.moving.rate, standard.moving.rate);
  EXPECT_EQ(faults.moving.rate_window, standard.moving.rate_window);
  EXPECT_EQ(faults.moving.breaker_percent, standard.moving.breaker_percent);
  EXPECT_EQ(faults.moving.breaker_window, standard.moving.breaker_window);
  EXPECT_TRUE(faults.moving.graces.empty());
  EXPECT_EQ(faults.cluster_percent, standard.cluster_percent);
}

TEST(FaultsSettings, AllOfThemFromTheFile) {
  const auto loaded = from_file(R"(
gpulet:
  faults:
    condition: false
    label: true
    podEvents: false
    podNotes: true
    taints: {degraded: PreferNoSchedule, withdrawn: none, lost: NoExecute}
    moving:
      enabled: true
      dryRun: true
      drained: stay
      quarantined: finish=30m
      lost: finish
      barePods: true
      rate: 3
      rateWindow: 10m
      breakerPercent: 25
      breakerWindow: 1h
      clusterPercent: 10
      graces: {xid-reset: evict, driver-away: finish=1h}
)");
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& faults = loaded->config.gpulet.faults;
  EXPECT_FALSE(faults.condition);
  EXPECT_FALSE(faults.pod_events);
  EXPECT_TRUE(faults.pod_notes);
  EXPECT_EQ(faults.taints, (std::map<Severity, std::string>{{Severity::kDegraded, "PreferNoSchedule"},
                                                            {Severity::kLost, "NoExecute"}}));
  const auto& moving = faults.moving;
  EXPECT_TRUE(moving.enabled);
  EXPECT_TRUE(moving.dry_run);
  EXPECT_EQ(moving.drained.kind, Grace::Kind::kStay);
  EXPECT_EQ(moving.quarantined, (Grace{Grace::Kind::kFinish, minutes(30)}));
  EXPECT_EQ(moving.lost, (Grace{Grace::Kind::kFinish, std::nullopt}));
  EXPECT_TRUE(moving.bare_pods);
  EXPECT_EQ(moving.rate, 3u);
  EXPECT_EQ(moving.rate_window, minutes(10));
  EXPECT_EQ(moving.breaker_percent, 25u);
  EXPECT_EQ(moving.breaker_window, minutes(60));
  EXPECT_EQ(faults.cluster_percent, 10u);
  EXPECT_EQ(moving.graces,
            (std::map<FaultClass, Grace>{{FaultClass::kXidReset, {Grace::Kind::kEvict, std::nullopt}},
                                         {FaultClass::kDriverAway, {Grace::Kind::kFinish, minutes(60)}}}));
}

TEST(FaultsSettings, FlagsAndVariablesGoBeforeTheFile) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = "gpulet:\n  faults:\n    moving:\n      enabled: false\n      lost: stay\n";
  sources.flags["faults-moving"] = {"true"};
  sources.environment["GPULET_FAULTS_MOVING_LOST"] = "finish=1d";
  sources.environment["GPULET_FAULTS_TAINT_LOST"] = "NoSchedule";
  const auto loaded = load(sources);
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& faults = loaded->config.gpulet.faults;
  EXPECT_TRUE(faults.moving.enabled);
  EXPECT_EQ(faults.moving.lost, (Grace{Grace::Kind::kFinish, std::chrono::hours(24)}));
  EXPECT_EQ(faults.taints.at(Severity::kLost), "NoSchedule");
}

TEST(FaultsSettings, WhatIsWrongIsSaidAtItsPlace) {
  const std::string moving = "gpulet:\n  faults:\n    moving:\n      ";
  EXPECT_NE(
      faults_error_of(moving + "lost: soon\n").find("'soon' is neither stay, finish, evict nor finish=TIME"),
      std::string::npos)
      << faults_error_of(moving + "lost: soon\n");
  EXPECT_NE(faults_error_of(moving + "lost: soon\n").find("node.yaml:4:"), std::string::npos);
  EXPECT_NE(faults_error_of(moving + "breakerPercent: 101\n").find("is not between 0 and 100"),
            std::string::npos);
  EXPECT_NE(faults_error_of(moving + "graces: {xid-resett: stay}\n").find("did you mean xid-reset?"),
            std::string::npos);
  EXPECT_NE(faults_error_of("gpulet:\n  faults:\n    taints: {lost: Never}\n").find("NoExecute would do"),
            std::string::npos);
  EXPECT_NE(faults_error_of("gpulet:\n  faults:\n    label: false\n    moving: {clusterPercent: 5}\n")
                .find("counts nodes by their label"),
            std::string::npos);
}

}  // namespace
}  // namespace gpulet::config
