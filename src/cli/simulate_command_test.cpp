#include "cli/simulate_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace gpulet::cli {
namespace {

using testing::HasSubstr;

SimulateOptions small(std::vector<std::string> policies) {
  SimulateOptions options;
  options.nodes = "tests/traces/nodes.csv";
  options.pods = "tests/traces/pods.csv";
  options.policies = std::move(policies);
  return options;
}

std::string report(const SimulateOptions& options) {
  const auto text = simulate_report(options, [](const std::string&) {});
  EXPECT_TRUE(text) << (text ? "" : text.error().text());
  return text ? *text : "";
}

TEST(SimulateCommand, PrintsALineForEachPolicy) {
  SimulateOptions options = small({"fgd", "binpack", "bestfit"});
  options.seeds = 2;
  const std::string text = report(options);
  EXPECT_THAT(text,
              testing::StartsWith("600 GPUs on 140 nodes; tasks drawn from 900 until 130 % of the GPUs"));
  EXPECT_THAT(
      text,
      HasSubstr("\nPOLICY         RUNS  ALLOCATED  LEAST    GREATEST  AT 100 % ASKED  PLACED  DROPPED\n"));
  EXPECT_THAT(text, HasSubstr("\nfragmentation  2     "));
  EXPECT_THAT(text, HasSubstr("\nbinpack        2     "));
  EXPECT_EQ(std::ranges::count(text, '\n'), 5) << "one policy by two names is one";
  EXPECT_EQ(text, report(options));
}

TEST(SimulateCommand, PrintsJson) {
  SimulateOptions options = small({"all"});
  options.output = "json";
  options.target = 0.5;
  const auto document = nlohmann::json::parse(report(options));
  EXPECT_EQ(document["gpus"], 600);
  EXPECT_EQ(document["target"], 0.5);
  ASSERT_EQ(document["policies"].size(), 7u);
  for (const auto& policy : document["policies"]) {
    EXPECT_GT(policy["allocated"]["mean"], 0.4) << policy["policy"];
    EXPECT_LT(policy["allocated"]["mean"], 0.52) << policy["policy"];
    EXPECT_EQ(policy["curve"].size(), 51u);
  }
}

TEST(SimulateCommand, WritesThePlotAndTellsHowFarItIs) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("gpulet-simulate-" + std::to_string(getpid()));
  SimulateOptions options = small({"default", "random"});
  options.plot = folder / "plot.svg";
  std::vector<std::string> lines;
  ASSERT_TRUE(simulate_report(options, [&](const std::string& line) { lines.push_back(line); }));
  const auto plot = read_file(options.plot);
  ASSERT_TRUE(plot);
  EXPECT_THAT(*plot, HasSubstr("pods.csv on nodes.csv"));
  EXPECT_THAT(*plot, HasSubstr(">default  9"));
  EXPECT_THAT(lines, testing::Contains("random, run 1 of 1: 100 %"));
  EXPECT_EQ(lines.back(), "");
  std::filesystem::remove_all(folder);
}

TEST(SimulateCommand, ReplaysDailyLoad) {
  SimulateOptions options;
  options.load = true;
  options.machines = 2;
  options.days = 3;
  const std::string text = report(options);
  EXPECT_THAT(text,
              testing::StartsWith(
                  "2 nodes of 8 GPUs, 3 days; what a service did before is not known\n\nPOLICY   RUNS"));
  EXPECT_THAT(text, HasSubstr("\nspread   1 "));
  EXPECT_THAT(text, HasSubstr("\nload     1 "));
  EXPECT_THAT(text, HasSubstr("\ndefault  1 "));
  options.output = "json";
  options.policies = {"spread"};
  options.seeds = 2;
  const auto document = nlohmann::json::parse(report(options));
  ASSERT_EQ(document["policies"].size(), 1u);
  const auto& policy = document["policies"][0];
  EXPECT_EQ(policy["runs"], 2);
  EXPECT_LE(policy["above95"]["least"], policy["above95"]["mean"]);
  EXPECT_GT(policy["meanUse"], 0.2);
}

TEST(SimulateCommand, SaysWhatIsWrong) {
  const auto refusal = [](const SimulateOptions& options) {
    const auto text = simulate_report(options, [](const std::string&) {});
    EXPECT_FALSE(text);
    return text ? "" : text.error().text();
  };
  EXPECT_THAT(refusal(small({"defualt"})),
              HasSubstr("no policy 'defualt'; did you mean default? There are default, "));
  SimulateOptions options = small({"default"});
  options.seeds = 0;
  EXPECT_EQ(refusal(options), "--seeds is 0, want 1 to 1000");
  options = small({"default"});
  options.pods = "tests/traces/none.csv";
  EXPECT_THAT(refusal(options), HasSubstr("tests/traces/none.csv"));
  EXPECT_THAT(refusal({}), HasSubstr("--nodes and --pods name the files of a trace"));
  options.load = true;
  EXPECT_THAT(refusal(options), HasSubstr("leave out --nodes and --pods, or --load"));
  options.load = false;
  options.pods = options.nodes;
  EXPECT_THAT(refusal(options), HasSubstr("tests/traces/nodes.csv: no column 'num_gpu' in the header"));
}

}  // namespace
}  // namespace gpulet::cli
