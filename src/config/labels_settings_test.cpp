#include <gtest/gtest.h>

#include "config/load.h"

namespace gpulet::config {
namespace {

Result<Loaded> loaded(const std::string& yaml, bool drop_in, bool discovery,
                      std::map<std::string, std::string, std::less<>> environment = {}) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = yaml;
  sources.drop_in = drop_in;
  sources.discovery = discovery;
  sources.environment = std::move(environment);
  return load(sources);
}

using Outputs = std::vector<LabelOutput>;

TEST(LabelSettings, WhereTheyGoDependsOnWhoWeAre) {
  EXPECT_EQ(loaded("", false, false)->config.gpulet.labels.outputs, Outputs{LabelOutput::kNode});
  EXPECT_EQ(loaded("", true, false)->config.gpulet.labels.outputs, Outputs{});
  EXPECT_EQ(loaded("", true, true)->config.gpulet.labels.outputs, Outputs{LabelOutput::kNodeFeature});
  EXPECT_EQ(loaded("flags: {useNodeFeatureAPI: false}", true, true)->config.gpulet.labels.outputs,
            Outputs{LabelOutput::kFile});
  // Given, it counts for everybody.
  const std::string both = "gpulet: {labels: {outputs: [file, node]}}";
  for (const bool discovery : {false, true}) {
    EXPECT_EQ(loaded(both, discovery, discovery)->config.gpulet.labels.outputs,
              (Outputs{LabelOutput::kFile, LabelOutput::kNode}));
  }
  EXPECT_EQ(loaded("gpulet: {labels: {outputs: none}}", false, false)->config.gpulet.labels.outputs,
            Outputs{});
  EXPECT_FALSE(loaded("gpulet: {labels: {outputs: [pod]}}", false, false));
}

TEST(LabelSettings, NvidiasDefaults) {
  const auto config = loaded("", true, true)->config;
  EXPECT_EQ(config.gfd, FeatureDiscovery());
  EXPECT_EQ(config.gfd.output_file, "/etc/kubernetes/node-feature-discovery/features.d/gfd");
  EXPECT_EQ(config.gfd.sleep_interval, std::chrono::seconds(60));
  EXPECT_TRUE(config.gpulet.labels.own);
}

TEST(LabelSettings, FromTheFile) {
  const auto gfd = loaded(
                       "flags: {gfd: {oneshot: true, noTimestamp: true, sleepInterval: infinite, "
                       "outputFile: '', machineTypeFile: /m}}",
                       true, true)
                       ->config.gfd;
  EXPECT_TRUE(gfd.oneshot && gfd.no_timestamp);
  EXPECT_EQ(gfd.sleep_interval, std::nullopt);
  EXPECT_EQ(gfd.output_file, "");
  EXPECT_EQ(gfd.machine_type_file, "/m");
}

TEST(LabelSettings, FeatureDiscoveryHasVariablesOfItsOwn) {
  const std::map<std::string, std::string, std::less<>> environment = {{"GFD_MIG_STRATEGY", "single"},
                                                                       {"MIG_STRATEGY", "mixed"},
                                                                       {"GFD_USE_NODE_FEATURE_API", "false"},
                                                                       {"GFD_ONESHOT", "true"},
                                                                       {"GFD_SLEEP_INTERVAL", "5m30s"}};
  const auto discovery = loaded("", true, true, environment)->config;
  EXPECT_EQ(discovery.flags.mig_strategy, MigStrategy::kSingle);
  EXPECT_FALSE(discovery.flags.use_node_feature_api);
  EXPECT_TRUE(discovery.gfd.oneshot);
  EXPECT_EQ(discovery.gfd.sleep_interval, std::chrono::seconds(330));
  EXPECT_EQ(loaded("", true, false, environment)->config.flags.mig_strategy, MigStrategy::kMixed);
}

// It runs no MPS daemon, so it need not know where they are.
TEST(LabelSettings, OnlyThePluginNeedsMpsRoot) {
  const std::string mps = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}";
  EXPECT_TRUE(loaded(mps, true, true));
  EXPECT_FALSE(loaded(mps, true, false));
}

TEST(LabelSettings, StandardOutputIsForFeatureDiscovery) {
  const std::string to_file = "flags: {gfd: {outputFile: ''}}\ngpulet: {labels: {outputs: file}}";
  EXPECT_TRUE(loaded(to_file, true, true));
  const auto agent = loaded(to_file, false, false);
  ASSERT_FALSE(agent);
  EXPECT_NE(agent.error().text().find("flags.gfd.outputFile"), std::string::npos) << agent.error().text();
}

}  // namespace
}  // namespace gpulet::config
