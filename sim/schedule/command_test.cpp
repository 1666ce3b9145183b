#include "sim/schedule/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace gpulet::sim {
namespace {

using testing::HasSubstr;

ScheduleOptions small_trace(std::vector<std::string> policies) {
  ScheduleOptions options;
  options.nodes = "tests/traces/nodes.csv";
  options.pods = "tests/traces/pods.csv";
  options.policies = std::move(policies);
  return options;
}

std::string simulate_small(const ScheduleOptions& options) {
  const auto text = schedule_report(options, [](const std::string&) {});
  EXPECT_TRUE(text) << (text ? "" : text.error().full_message());
  return text ? *text : "";
}

TEST(ScheduleCommand, PrintsOneLinePerPolicy) {
  ScheduleOptions options = small_trace({"fgd", "binpack", "bestfit"});
  options.seeds = 2;
  const std::string text = simulate_small(options);
  EXPECT_THAT(text,
              testing::StartsWith("600 GPUs on 140 nodes; tasks drawn from 900 until 130 % of the GPUs"));
  EXPECT_THAT(
      text,
      HasSubstr("\nPOLICY         RUNS  ALLOCATED  MIN      MAX      AT 100 % REQUESTED  PLACED  DROPPED\n"));
  EXPECT_THAT(text, HasSubstr("\nfragmentation  2     "));
  EXPECT_THAT(text, HasSubstr("\nbinpack        2     "));
  EXPECT_EQ(std::ranges::count(text, '\n'), 5) << "two names of one policy give one line";
  EXPECT_EQ(text, simulate_small(options));
}

TEST(ScheduleCommand, PrintsJson) {
  ScheduleOptions options = small_trace({"all"});
  options.output = "json";
  options.target = 0.5;
  const auto document = nlohmann::json::parse(simulate_small(options));
  EXPECT_EQ(document["gpus"], 600);
  EXPECT_EQ(document["target"], 0.5);
  ASSERT_EQ(document["policies"].size(), 7u);
  for (const auto& policy : document["policies"]) {
    EXPECT_GT(policy["allocated"]["mean"], 0.4) << policy["policy"];
    EXPECT_LT(policy["allocated"]["mean"], 0.52) << policy["policy"];
    EXPECT_EQ(policy["curve"].size(), 51u);
  }
}

TEST(ScheduleCommand, PrintsRowsAloneAndYaml) {
  ScheduleOptions options = small_trace({"fgd", "binpack"});
  const std::string table = simulate_small(options);
  options.output.headers = false;
  const std::string rows = simulate_small(options);
  EXPECT_THAT(rows, testing::StartsWith("fragmentation  1  "));
  EXPECT_EQ(std::ranges::count(rows, '\n'), 2);
  options.output = "wide";
  EXPECT_EQ(simulate_small(options), table);
  options.output = "yaml";
  EXPECT_THAT(simulate_small(options), testing::StartsWith("nodes: 140\ngpus: 600\ntasks: 900\n"));
}

TEST(ScheduleCommand, WritesThePlotAndReportsProgress) {
  const auto directory =
      std::filesystem::temp_directory_path() / ("gpulet-simulate-" + std::to_string(getpid()));
  ScheduleOptions options = small_trace({"default", "random"});
  options.plot = directory / "plot.svg";
  std::vector<std::string> lines;
  ASSERT_TRUE(schedule_report(options, [&](const std::string& line) { lines.push_back(line); }));
  const auto plot = read_file(options.plot);
  ASSERT_TRUE(plot);
  EXPECT_THAT(*plot, HasSubstr("pods.csv on nodes.csv"));
  EXPECT_THAT(*plot, HasSubstr(">default  9"));
  EXPECT_THAT(lines, testing::Contains("random, run 1 of 1: 100 %"));
  EXPECT_EQ(lines.back(), "");
  std::filesystem::remove_all(directory);
}

TEST(ScheduleCommand, ReplaysDailyLoad) {
  ScheduleOptions options;
  options.load = true;
  options.machines = 2;
  options.days = 3;
  const std::string text = simulate_small(options);
  EXPECT_THAT(text, testing::StartsWith(
                        "2 nodes of 8 GPUs, 3 days; past use of services is not known\n\nPOLICY   RUNS"));
  EXPECT_THAT(text, HasSubstr("\nspread   1 "));
  EXPECT_THAT(text, HasSubstr("\nload     1 "));
  EXPECT_THAT(text, HasSubstr("\ndefault  1 "));
  options.output = "json";
  options.policies = {"spread"};
  options.seeds = 2;
  const auto document = nlohmann::json::parse(simulate_small(options));
  ASSERT_EQ(document["policies"].size(), 1u);
  const auto& policy = document["policies"][0];
  EXPECT_EQ(policy["runs"], 2);
  EXPECT_LE(policy["above95"]["least"], policy["above95"]["mean"]);
  EXPECT_GT(policy["meanUse"], 0.2);
  EXPECT_FALSE(policy.contains("moves"));
}

TEST(ScheduleCommand, ComparesWithRebalancing) {
  ScheduleOptions options;
  options.load = options.rebalance = true;
  options.machines = 2;
  options.days = 3;
  options.policies = {"spread"};
  const std::string text = simulate_small(options);
  EXPECT_THAT(text, HasSubstr("  REBALANCED  MOVES  RESTARTING\n"));
  EXPECT_EQ(std::ranges::count(text, '\n'), 5) << "with and without";
  options.output = "json";
  const auto document = nlohmann::json::parse(simulate_small(options));
  ASSERT_EQ(document["policies"].size(), 2u);
  EXPECT_EQ(document["policies"][0]["rebalanced"], false);
  EXPECT_EQ(document["policies"][0]["moves"], 0);
  EXPECT_EQ(document["policies"][1]["rebalanced"], true);
  EXPECT_GT(document["policies"][1]["moves"], 0);
  EXPECT_GT(document["policies"][1]["restarting"], 0);
}

TEST(ScheduleCommand, RejectsInvalidOptions) {
  const auto error_of = [](const ScheduleOptions& options) {
    const auto text = schedule_report(options, [](const std::string&) {});
    EXPECT_FALSE(text);
    return text ? "" : text.error().full_message();
  };
  EXPECT_THAT(error_of(small_trace({"defualt"})),
              HasSubstr("unknown policy 'defualt'; did you mean default? Policies: default, "));
  ScheduleOptions options = small_trace({"default"});
  options.seeds = 0;
  EXPECT_EQ(error_of(options), "--seeds is 0, expected 1 to 1000");
  options = small_trace({"default"});
  options.pods = "tests/traces/none.csv";
  EXPECT_THAT(error_of(options), HasSubstr("tests/traces/none.csv"));
  EXPECT_THAT(error_of({}), HasSubstr("name the files of a trace with --nodes and --pods"));
  options.load = true;
  EXPECT_THAT(error_of(options), HasSubstr("omit --nodes and --pods, or --load"));
  options.load = false;
  options.pods = options.nodes;
  EXPECT_THAT(error_of(options), HasSubstr("tests/traces/nodes.csv: no column 'num_gpu' in the header"));
}

}  // namespace
}  // namespace gpulet::sim
