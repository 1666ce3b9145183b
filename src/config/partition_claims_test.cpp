// Rules of gpulet.partition for GPUs that only claims have.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "config/load.h"
#include "config/partition_rules.h"
#include "config/test_sources.h"

namespace gpulet::config {
namespace {

// The rule is on line 4.
Sources claim_rule(const std::string& rule, bool is_enabled = true) {
  return file_source("gpulet:\n  dra: {enabled: " + std::string(is_enabled ? "true" : "false") +
                     "}\n  partition:\n    " + rule + "\n");
}

PartitionRule rule_of(const std::string& rule) {
  const auto loaded = load(claim_rule(rule));
  EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().full_message());
  return loaded ? loaded->config.gpulet.partition.at(0) : PartitionRule{};
}

std::string error_of_rule(const std::string& rule, bool is_enabled = true) {
  const auto checked = check_config(claim_rule(rule, is_enabled));
  EXPECT_EQ(checked.errors.size(), 1u);
  return checked.errors.empty() ? "" : checked.errors[0].full_message();
}

TEST(PartitionForClaims, DynamicMigListsProfiles) {
  const auto read = rule_of("- {dynamicMig: {profiles: [3g.40gb, 1g.10gb+me]}, offer: claims}");
  EXPECT_EQ(read.mode, (decltype(read.mode)(DynamicMig{{"3g.40gb", "1g.10gb+me"}})));
  EXPECT_EQ(error_of_rule("- dynamicMig: {profiles: [1g.5gb]}", false),
            "x.yaml:4:7: gpulet.partition: dynamicMig is for claims while gpulet.dra.enabled is false; "
            "expected true");
  const std::string at = "x.yaml:4:", rule = "gpulet.partition[0]", list = rule + ".dynamicMig.profiles";
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"- {dynamicMig: {profiles: [1g.5gb]}, offer: devicePlugin}",
            "49: " + rule + ".offer: dynamicMig is for claims; expected claims, found \"devicePlugin\""},
           {"- {dynamicMig: {}}",
            "20: " + rule + ".dynamicMig: no profiles specified; expected a list such as [1g.10gb, 3g.40gb]"},
           {"- {dynamicMig: {profiles: []}}", "31: " + list + ": an empty list; expected at least one"},
           {"- {dynamicMig: {profiles: [1c.2g.20gb]}}",
            "32: " + list +
                "[0]: '1c.2g.20gb' is not the MIG profile of a GPU instance such as 1g.10gb or "
                "1g.10gb+me"},
           {"- {dynamicMig: {profiles: [1g.5gb, 1g.5gb]}}", "40: " + list + "[1]: 1g.5gb is listed twice"},
           {"- {mig: {layout: a}, dynamicMig: {profiles: [1g.5gb]}}",
            "26: " + rule + ": dynamicMig together with mig: a rule has exactly one of them"},
       }) {
    EXPECT_EQ(error_of_rule(text), at + error);
  }
}

TEST(PartitionForClaims, ConsumableSharesAreNvidias) {
  const auto shares_of = [&](const std::string& value) {
    const auto read = rule_of("- {whole: {consumableShares: " + value + "}}");
    return std::get<Whole>(read.mode).consumable_shares;
  };
  EXPECT_EQ(shares_of("disabled"), std::nullopt);
  EXPECT_EQ(shares_of("unlimited"), (ConsumableShares{ShareLimit::kUnlimited}));
  EXPECT_EQ(shares_of("memory"), (ConsumableShares{ShareLimit::kMemory}));
  EXPECT_EQ(shares_of("4"), (ConsumableShares{ShareLimit::kCount, 4}));
  EXPECT_EQ(shares_of("1024"), (ConsumableShares{ShareLimit::kCount, 1024}));
  EXPECT_EQ(error_of_rule("- {whole: {consumableShares: memory}}", false),
            "x.yaml:4:7: gpulet.partition: consumableShares is for claims while gpulet.dra.enabled is false; "
            "expected true");
  const std::string at = "x.yaml:4:", rule = "gpulet.partition[0]";
  const std::string wanted =
      rule +
      ".whole.consumableShares: expected disabled, unlimited, memory or a count of shares between 1 and "
      "1024, found ";
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"- {whole: {consumableShares: memory}, offer: devicePlugin}",
            "50: " + rule +
                ".offer: consumableShares is for claims; expected claims, found \"devicePlugin\""},
           {"- {whole: {consumableShares: 0}}", "34: " + wanted + "'0'"},
           {"- {whole: {consumableShares: 1025}}", "34: " + wanted + "'1025'"},
           {"- {whole: {consumableShares: Memory}}", "34: " + wanted + "'Memory'"},
           {"- {whole: {consumableShares: \"4\"}}", "34: " + wanted + "the quoted string '4'"},
           {"- {whole: {consumableShares: [4]}}", "34: " + wanted + "a list"},
           {"- {whole: {consumableShares: 4}, mps: {replicas: 4}}",
            "38: " + rule + ": mps together with whole: a rule has exactly one of them"},
       }) {
    EXPECT_EQ(error_of_rule(text), at + error);
  }
}

TEST(PartitionOnDemand, IsForPodsThatAskForAProfile) {
  EXPECT_FALSE(std::get<Mig>(rule_of("- {mig: {layout: all-balanced}}").mode).on_demand);
  EXPECT_TRUE(
      std::get<Mig>(rule_of("- {mig: {devices: {1g.10gb: 7}, onDemand: true}, offer: devicePlugin}").mode)
          .on_demand);
  EXPECT_EQ(
      error_of_rule("- {mig: {layout: all-balanced, onDemand: true}}"),
      "x.yaml:4:7: gpulet.partition: mig.onDemand is for Pods without claims while gpulet.dra.enabled is "
      "true; expected offer: devicePlugin");
  EXPECT_TRUE(
      check_config(claim_rule("- {mig: {layout: all-balanced, onDemand: true}}", false)).errors.empty());
  const std::string rule = "gpulet.partition[0]";
  EXPECT_NE(
      error_of_rule(
          "- {mig: {layout: all-balanced, onDemand: true, name: nvidia.com/slice}, offer: devicePlugin}")
          .find(rule + ".mig.onDemand: a Pod that waits asks for the resource of its profile; use "
                       "strategy mixed without a name"),
      std::string::npos);
  EXPECT_NE(
      error_of_rule("- {mig: {layout: all-balanced, onDemand: true, strategy: single}, offer: devicePlugin}")
          .find(rule + ".mig.onDemand"),
      std::string::npos);
  EXPECT_NE(error_of_rule("- {mig: {layout: all-balanced, onDemand: 1}}").find(rule + ".mig.onDemand"),
            std::string::npos);
  EXPECT_NE(error_of_rule("- {mig: {layout: all-balanced, onDemand: true}, offer: claims}")
                .find(rule + ".offer: mig.onDemand is for Pods without claims; expected devicePlugin"),
            std::string::npos);
}

}  // namespace
}  // namespace gpulet::config
