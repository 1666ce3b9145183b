#include <gtest/gtest.h>

#include "config/load.h"

namespace gpulet::config {
namespace {

using std::chrono::milliseconds;

Result<LoadedConfig> from(const std::string& text,
                          std::map<std::string, std::string, std::less<>> environment) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = text;
  sources.environment = std::move(environment);
  return load(sources);
}

TEST(MetricsSettings, DefaultsSampleEverythingEveryFifteenSeconds) {
  const auto loaded = from("", {});
  ASSERT_TRUE(loaded);
  const auto& metrics = loaded->config.gpulet.metrics;
  EXPECT_TRUE(metrics.enabled);
  EXPECT_EQ(metrics.interval, milliseconds(15'000));
  EXPECT_EQ(metrics.counters_file, "");
  EXPECT_EQ(metrics.host_label, HostLabel::kUpper);
  EXPECT_FALSE(metrics.old_namespace || metrics.replace_blanks || metrics.virtual_gpus || metrics.pod_uid);
  EXPECT_EQ(metrics.pod_logs_dir, "/var/log/pods");
  EXPECT_EQ(metrics.devices, "f");
  EXPECT_EQ(metrics.counters_config_map, "");
  EXPECT_EQ(metrics.xid_window, milliseconds(300'000));
  EXPECT_EQ(metrics.clock_events_window, milliseconds(300'000));
  EXPECT_FALSE(metrics.pod_labels || metrics.nvlinks);
  EXPECT_TRUE(metrics.pod_label_patterns.empty());
}

TEST(MetricsSettings, AreReadFromTheFile) {
  const auto loaded = from(
      "version: v1\n"
      "gpulet:\n"
      "  metrics: {enabled: false, interval: 1m, countersFile: /etc/counters.csv, hostLabel: hostname,\n"
      "            oldNamespace: true, virtualGPUs: true, podLogsDir: /logs, devices: g, xidWindow: 1m,\n"
      "            nvlinks: true,\n"
      "            podLabels: true, podLabelPatterns: ['^app$', team]}\n",
      {});
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& metrics = loaded->config.gpulet.metrics;
  EXPECT_FALSE(metrics.enabled);
  EXPECT_EQ(metrics.interval, milliseconds(60'000));
  EXPECT_EQ(metrics.counters_file, "/etc/counters.csv");
  EXPECT_EQ(metrics.host_label, HostLabel::kLower);
  EXPECT_TRUE(metrics.old_namespace && metrics.virtual_gpus && metrics.nvlinks);
  EXPECT_EQ(metrics.pod_logs_dir, "/logs");
  EXPECT_EQ(metrics.devices, "g");
  EXPECT_EQ(metrics.xid_window, milliseconds(60'000));
  EXPECT_TRUE(metrics.pod_labels);
  EXPECT_EQ(metrics.pod_label_patterns, (std::vector<std::string>{"^app$", "team"}));
}

TEST(MetricsSettings, DcgmExportersVariablesWork) {
  const auto loaded = from("", {{"DCGM_EXPORTER_INTERVAL", "30000"},
                                {"DCGM_EXPORTER_COLLECTORS", "/etc/dcgm-exporter/default-counters.csv"},
                                {"DCGM_EXPORTER_LISTEN", ":9401"},
                                {"DCGM_EXPORTER_USE_OLD_NAMESPACE", "true"},
                                {"DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", "true"},
                                {"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "true"},
                                {"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "true"},
                                {"DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "^app$,^team"},
                                {"DCGM_EXPORTER_CONFIGMAP_DATA", "monitoring:counters"},
                                {"DCGM_EXPORTER_DEVICES_STR", "g:0-3"},
                                {"DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", "60000"},
                                {"DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", "90000"},
                                {"KUBERNETES_VIRTUAL_GPUS", "true"}});
  ASSERT_TRUE(loaded) << loaded.error().full_message();
  const auto& metrics = loaded->config.gpulet.metrics;
  EXPECT_EQ(metrics.interval, milliseconds(30'000));
  EXPECT_EQ(metrics.counters_file, "/etc/dcgm-exporter/default-counters.csv");
  EXPECT_EQ(loaded->config.gpulet.listen, ":9401");
  EXPECT_EQ(metrics.counters_config_map, "monitoring:counters");
  EXPECT_EQ(metrics.devices, "g:0-3");
  EXPECT_EQ(metrics.xid_window, milliseconds(60'000));
  EXPECT_EQ(metrics.clock_events_window, milliseconds(90'000));
  EXPECT_TRUE(metrics.pod_labels);
  EXPECT_EQ(metrics.pod_label_patterns, (std::vector<std::string>{"^app$", "^team"}));
  const auto none = from("", {{"DCGM_EXPORTER_CONFIGMAP_DATA", "none"}});
  ASSERT_TRUE(none);
  EXPECT_EQ(none->config.gpulet.metrics.counters_config_map, "");
  EXPECT_TRUE(metrics.old_namespace && metrics.replace_blanks && metrics.pod_uid && metrics.virtual_gpus);
}

TEST(MetricsSettings, IntervalIsWithinItsBounds) {
  for (const char* interval : {"100ms", "2h", "0", "often"}) {
    EXPECT_FALSE(from(std::string("version: v1\ngpulet: {metrics: {interval: ") + interval + "}}\n", {}))
        << interval;
  }
  for (const char* interval : {"999", "3600001", "15s"}) {
    EXPECT_FALSE(from("", {{"DCGM_EXPORTER_INTERVAL", interval}})) << interval;
  }
}

}  // namespace

namespace {

Result<LoadedConfig> loaded(const std::string& yaml, bool drop_in, bool discovery,
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

TEST(LabelSettings, DefaultOutputDependsOnTheProgram) {
  EXPECT_EQ(loaded("", false, false)->config.gpulet.labels.outputs, Outputs{LabelOutput::kNode});
  EXPECT_EQ(loaded("", true, false)->config.gpulet.labels.outputs, Outputs{});
  EXPECT_EQ(loaded("", true, true)->config.gpulet.labels.outputs, Outputs{LabelOutput::kNodeFeature});
  EXPECT_EQ(loaded("flags: {useNodeFeatureAPI: false}", true, true)->config.gpulet.labels.outputs,
            Outputs{LabelOutput::kFile});
  // If set, it applies to every program.
  const std::string both = "gpulet: {labels: {outputs: [file, node]}}";
  for (const bool discovery : {false, true}) {
    EXPECT_EQ(loaded(both, discovery, discovery)->config.gpulet.labels.outputs,
              (Outputs{LabelOutput::kFile, LabelOutput::kNode}));
  }
  EXPECT_EQ(loaded("gpulet: {labels: {outputs: none}}", false, false)->config.gpulet.labels.outputs,
            Outputs{});
  EXPECT_FALSE(loaded("gpulet: {labels: {outputs: [pod]}}", false, false));
}

TEST(LabelSettings, HaveNvidiasDefaults) {
  const auto config = loaded("", true, true)->config;
  EXPECT_EQ(config.gfd, FeatureDiscovery());
  EXPECT_EQ(config.gfd.output_file, "/etc/kubernetes/node-feature-discovery/features.d/gfd");
  EXPECT_EQ(config.gfd.sleep_interval, std::chrono::seconds(60));
  EXPECT_TRUE(config.gpulet.labels.extended);
}

TEST(LabelSettings, AreReadFromTheFile) {
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

TEST(LabelSettings, FeatureDiscoveryHasItsOwnVariables) {
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

// It runs no MPS daemon, so it needs no MPS root.
TEST(LabelSettings, OnlyThePluginNeedsMpsRoot) {
  const std::string mps = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}";
  EXPECT_TRUE(loaded(mps, true, true));
  EXPECT_FALSE(loaded(mps, true, false));
}

TEST(LabelSettings, StandardOutputIsOnlyForFeatureDiscovery) {
  const std::string to_file = "flags: {gfd: {outputFile: ''}}\ngpulet: {labels: {outputs: file}}";
  EXPECT_TRUE(loaded(to_file, true, true));
  const auto agent = loaded(to_file, false, false);
  ASSERT_FALSE(agent);
  EXPECT_NE(agent.error().full_message().find("flags.gfd.outputFile"), std::string::npos)
      << agent.error().full_message();
}

}  // namespace
}  // namespace gpulet::config
