#include <gtest/gtest.h>

#include "config/load.h"

namespace gpulet::config {
namespace {

using std::chrono::milliseconds;

Result<Loaded> from(const std::string& text, std::map<std::string, std::string, std::less<>> environment) {
  Sources sources;
  sources.file_path = "node.yaml";
  sources.file_content = text;
  sources.environment = std::move(environment);
  return load(sources);
}

TEST(MetricsSettings, ByDefaultAllIsMeasuredEveryFifteenSeconds) {
  const auto loaded = from("", {});
  ASSERT_TRUE(loaded);
  const auto& metrics = loaded->config.gpulet.metrics;
  EXPECT_TRUE(metrics.enabled);
  EXPECT_EQ(metrics.interval, milliseconds(15'000));
  EXPECT_EQ(metrics.counters_file, "");
  EXPECT_EQ(metrics.host_label, HostLabel::kLower);
  EXPECT_FALSE(metrics.old_namespace || metrics.replace_blanks || metrics.virtual_gpus || metrics.pod_uid);
  EXPECT_EQ(metrics.pod_logs, "/var/log/pods");
  EXPECT_EQ(metrics.devices, "f");
  EXPECT_EQ(metrics.counters_config_map, "");
  EXPECT_EQ(metrics.xid_window, milliseconds(300'000));
  EXPECT_EQ(metrics.clock_events_window, milliseconds(300'000));
  EXPECT_FALSE(metrics.pod_labels);
  EXPECT_TRUE(metrics.pod_label_patterns.empty());
}

TEST(MetricsSettings, AreReadFromTheFile) {
  const auto loaded = from(
      "version: v1\n"
      "gpulet:\n"
      "  metrics: {enabled: false, interval: 1m, countersFile: /etc/counters.csv, hostLabel: Hostname,\n"
      "            oldNamespace: true, virtualGPUs: true, podLogs: /logs, devices: g, xidWindow: 1m,\n"
      "            podLabels: true, podLabelPatterns: ['^app$', team]}\n",
      {});
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& metrics = loaded->config.gpulet.metrics;
  EXPECT_FALSE(metrics.enabled);
  EXPECT_EQ(metrics.interval, milliseconds(60'000));
  EXPECT_EQ(metrics.counters_file, "/etc/counters.csv");
  EXPECT_EQ(metrics.host_label, HostLabel::kUpper);
  EXPECT_TRUE(metrics.old_namespace && metrics.virtual_gpus);
  EXPECT_EQ(metrics.pod_logs, "/logs");
  EXPECT_EQ(metrics.devices, "g");
  EXPECT_EQ(metrics.xid_window, milliseconds(60'000));
  EXPECT_TRUE(metrics.pod_labels);
  EXPECT_EQ(metrics.pod_label_patterns, (std::vector<std::string>{"^app$", "team"}));
}

TEST(MetricsSettings, AreDcgmExportersVariablesToo) {
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
  ASSERT_TRUE(loaded) << loaded.error().text();
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

TEST(MetricsSettings, AnIntervalIsWithinItsBounds) {
  for (const char* interval : {"100ms", "2h", "0", "often"}) {
    EXPECT_FALSE(from(std::string("version: v1\ngpulet: {metrics: {interval: ") + interval + "}}\n", {}))
        << interval;
  }
  for (const char* interval : {"999", "3600001", "15s"}) {
    EXPECT_FALSE(from("", {{"DCGM_EXPORTER_INTERVAL", interval}})) << interval;
  }
}

}  // namespace
}  // namespace gpulet::config
