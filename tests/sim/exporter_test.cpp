// `dcgm-exporter` as a process: metrics with their Pods, and nothing else.
#include <filesystem>

#include "base/text.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;

class SimExporter : public NodeTest {
 protected:
  static sim::AgentOptions exporter_options(std::vector<std::string> arguments = {}) {
    return {
        .name = "dcgm-exporter",
        .arguments = std::move(arguments),
        .environment = {"DCGM_EXPORTER_KUBERNETES=true", "GPULET_DRIVER_CALL_TIMEOUT=300ms",
                        "DCGM_EXPORTER_COLLECTORS=/etc/dcgm-exporter/dcp-metrics-included.csv",
                        "DCGM_REMOTE_HOSTENGINE_INFO=nvidia-dcgm:5555", "DCGM_EXPORTER_DCGM_LOG_LEVEL=NONE",
                        "KUBERNETES_SERVICE_HOST=10.0.0.1", "KUBERNETES_SERVICE_PORT=443"}};
  }
  std::size_t series_count(const std::string& name) {
    const auto body = http_get(listener_port(), "/metrics").body;
    std::size_t count = 0;
    for (const auto& line : text::split(body, '\n')) count += line.starts_with(name + "{") ? 1 : 0;
    return count;
  }
};

TEST_F(SimExporter, ServesMetricsAndOffersNothing) {
  bring_up_node();
  start_agent(exporter_options({"-c", "1000", "--devices=g:0-3"}));
  ASSERT_TRUE(becomes_true([&] { return series_count("DCGM_FI_DEV_GPU_TEMP") == 4; })) << agent_log();
  const auto health = http_get(listener_port(), "/health");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, "OK\n");
  EXPECT_EQ(http_get(listener_port(), "/readyz").status, 200);
  // Between two samples.
  EXPECT_TRUE(becomes_true([&] { return series_count("DCGM_FI_PROF_GR_ENGINE_ACTIVE") == 4; }));
  EXPECT_EQ(series_count("gpulet_devices"), 0u);
  EXPECT_EQ(registration_count(), 0u);
  EXPECT_FALSE(std::filesystem::exists(sim_node().state_dir() + "/health.json"));
  EXPECT_FALSE(std::filesystem::exists(sim_node().socket()));
  EXPECT_TRUE(!std::filesystem::exists(sim_node().directory() + "/cdi") ||
              std::filesystem::is_empty(sim_node().directory() + "/cdi"));
  EXPECT_NE(agent_log().find("DCGM_EXPORTER_DCGM_LOG_LEVEL is not used"), std::string::npos) << agent_log();
  EXPECT_EQ(agent_log().find("cannot"), std::string::npos) << agent_log();
}

TEST_F(SimExporter, HealthAnswersWhileTheDriverHangs) {
  bring_up_node();
  for (std::uint32_t gpu = 0; gpu < gpu_count(); ++gpu)
    ASSERT_TRUE(control::hang_calls(machine_state(), gpu));
  start_agent(exporter_options());
  const auto port = listener_port();
  ASSERT_NE(port, 0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(http_get(port, "/health").status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  ASSERT_TRUE(becomes_true([&] { return http_get(port, "/metrics").status == 200; }));
  EXPECT_EQ(http_get(port, "/health").status, 200);
  EXPECT_EQ(series_count("DCGM_FI_DEV_GPU_TEMP"), 0u);
}

}  // namespace
}  // namespace gpulet::tests
