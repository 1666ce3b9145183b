#include "cli/dropin/exporter.h"

#include <gtest/gtest.h>

#include <stdlib.h>

#include <filesystem>

namespace gpulet::cli {
namespace {

config::Config config_of(const std::map<std::string, std::string>& flags, Environment environment) {
  const auto settings = exporter_settings(flags, std::move(environment));
  EXPECT_TRUE(settings) << settings.error().full_message();
  const auto loaded = config::load(settings->sources);
  EXPECT_TRUE(loaded) << loaded.error().full_message();
  return loaded->config;
}

TEST(Exporter, TakesTheVariablesOfTheOperator) {
  const auto config =
      config_of({}, {{"DCGM_EXPORTER_LISTEN", ":9400"},
                     {"DCGM_EXPORTER_KUBERNETES", "true"},
                     {"DCGM_EXPORTER_COLLECTORS", "/etc/dcgm-exporter/dcp-metrics-included.csv"}});
  EXPECT_EQ(config.gpulet.listen, ":9400");
  EXPECT_EQ(config.gpulet.metrics.counters_file, "/etc/dcgm-exporter/dcp-metrics-included.csv");
  EXPECT_FALSE(config.flags.fail_on_init_error);
}

TEST(Exporter, AFlagOverridesItsVariable) {
  const auto config = config_of({{"collectors", "/a.csv"}, {"collect-interval", "30000"}, {"devices", "g:0"}},
                                {{"DCGM_EXPORTER_COLLECTORS", "/b.csv"}, {"DCGM_EXPORTER_INTERVAL", "2000"}});
  EXPECT_EQ(config.gpulet.metrics.counters_file, "/a.csv");
  EXPECT_EQ(config.gpulet.metrics.interval, std::chrono::seconds(30));
  EXPECT_EQ(config.gpulet.metrics.devices, "g:0");
}

TEST(Exporter, KeepsNothingOnTheHost) {
  const auto config =
      config_of({}, {{"GPULET_STATE_DIR", "/var/lib/gpulet"}, {"GPULET_SOCKET", "/run/a.sock"}});
  EXPECT_EQ(config.gpulet.state_dir, "");
  EXPECT_EQ(config.gpulet.socket, "");
  EXPECT_EQ(config.gpulet.kernel_log, "");
  EXPECT_TRUE(config.gpulet.labels.outputs.empty());
}

TEST(Exporter, ObeysOptionsThatTheAgentNamesOtherwise) {
  const auto config = config_of({{"debug", "true"}, {"log-format", "json"}},
                                {{"DCGM_POD_RESOURCES_KUBELET_SOCKET", "/data/pod-resources/kubelet.sock"}});
  EXPECT_EQ(config.gpulet.log_level, config::LogLevel::kDebug);
  EXPECT_EQ(config.gpulet.log_format, config::LogFormat::kJson);
  EXPECT_EQ(config.gpulet.kubelet_dir, "/data");
  const auto wrong = exporter_settings({{"pod-resources-kubelet-socket", "/a.sock"}}, {});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().full_message(),
            "--pod-resources-kubelet-socket: '/a.sock' is not supported; expected "
            "DIRECTORY/pod-resources/kubelet.sock");
}

TEST(Exporter, SaysWhatItDoesNotUse) {
  const auto settings =
      exporter_settings({{"enable-dcgm-log", "false"}}, {{"DCGM_EXPORTER_DCGM_LOG_LEVEL", "DEBUG"},
                                                         {"DCGM_EXPORTER_KUBERNETES", "true"},
                                                         {"DCGM_HPC_JOB_MAPPING_DIR", ""}});
  ASSERT_TRUE(settings);
  EXPECT_EQ(settings->notes,
            std::vector<std::string>{
                "DCGM_EXPORTER_DCGM_LOG_LEVEL is not used: no DCGM: the agent reads the driver directly"});
}

TEST(Exporter, IsRecognizedByItsVariablesWhereNoPluginDirectoryIsMounted) {
  std::string directory = testing::TempDir() + "exporter-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const auto plugins = directory + "/device-plugins";
  EXPECT_TRUE(is_exporter_container({{"DCGM_EXPORTER_KUBERNETES", "true"}}, plugins));
  EXPECT_TRUE(is_exporter_container({{"DCGM_EXPORTER_LISTEN", ":9400"}}, plugins));
  EXPECT_FALSE(is_exporter_container({{"DEVICE_LIST_STRATEGY", "envvar"}}, plugins));
  std::filesystem::create_directories(plugins);
  EXPECT_FALSE(is_exporter_container({{"DCGM_EXPORTER_LISTEN", ":9400"}}, plugins));
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace gpulet::cli
