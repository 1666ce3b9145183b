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
}

TEST(MetricsSettings, AreReadFromTheFile) {
  const auto loaded = from(
      "version: v1\n"
      "gpulet:\n"
      "  metrics: {enabled: false, interval: 1m, countersFile: /etc/counters.csv, hostLabel: Hostname,\n"
      "            oldNamespace: true, virtualGPUs: true, podLogs: /logs}\n",
      {});
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& metrics = loaded->config.gpulet.metrics;
  EXPECT_FALSE(metrics.enabled);
  EXPECT_EQ(metrics.interval, milliseconds(60'000));
  EXPECT_EQ(metrics.counters_file, "/etc/counters.csv");
  EXPECT_EQ(metrics.host_label, HostLabel::kUpper);
  EXPECT_TRUE(metrics.old_namespace && metrics.virtual_gpus);
  EXPECT_EQ(metrics.pod_logs, "/logs");
}

TEST(MetricsSettings, AreDcgmExportersVariablesToo) {
  const auto loaded = from("", {{"DCGM_EXPORTER_INTERVAL", "30000"},
                                {"DCGM_EXPORTER_COLLECTORS", "/etc/dcgm-exporter/default-counters.csv"},
                                {"DCGM_EXPORTER_LISTEN", ":9401"},
                                {"DCGM_EXPORTER_USE_OLD_NAMESPACE", "true"},
                                {"DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", "true"},
                                {"DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", "true"},
                                {"KUBERNETES_VIRTUAL_GPUS", "true"}});
  ASSERT_TRUE(loaded) << loaded.error().text();
  const auto& metrics = loaded->config.gpulet.metrics;
  EXPECT_EQ(metrics.interval, milliseconds(30'000));
  EXPECT_EQ(metrics.counters_file, "/etc/dcgm-exporter/default-counters.csv");
  EXPECT_EQ(loaded->config.gpulet.listen, ":9401");
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
