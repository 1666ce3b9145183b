// The node's pages, their listener, and the shutdown of the agent.
#include <signal.h>

#include <filesystem>

#include "base/file.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

class SimPages : public NodeTest {
 protected:
  bool replies_with(const std::string& path, int status, const std::string& part = {}) {
    return becomes_true([&] {
      const auto answer = http_get(listener_port(), path);
      return answer.status == status && answer.body.find(part) != std::string::npos;
    });
  }
};

TEST_F(SimPages, ReportAHealthyNode) {
  start_node();
  EXPECT_TRUE(replies_with("/healthz", 200));
  EXPECT_TRUE(replies_with("/readyz", 200));
  EXPECT_TRUE(
      replies_with("/metrics", 200, "gpulet_devices{resource=\"nvidia.com/gpu\",health=\"Healthy\"} 8\n"));
  const auto metrics = http_get(listener_port(), "/metrics").body;
  EXPECT_NE(metrics.find("gpulet_driver_up 1\n"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("gpulet_registrations_total 1\n"), std::string::npos) << metrics;
}

TEST_F(SimPages, ReportAMissingKubelet) {
  start_node();
  ASSERT_TRUE(replies_with("/readyz", 200));
  sim_kubelet().stop_kubelet();
  std::filesystem::remove(sim_kubelet().kubelet_socket());
  EXPECT_TRUE(replies_with("/readyz", 503, "nvidia.com/gpu: "));
  EXPECT_TRUE(replies_with("/healthz", 200));  // a restart of the agent would not help
  ASSERT_TRUE(sim_kubelet().resume_kubelet());
  ASSERT_TRUE(becomes_allocatable(8));
  EXPECT_TRUE(replies_with("/readyz", 200));
}

TEST_F(SimPages, ReportAMissingDriver) {
  start_node();
  ASSERT_TRUE(replies_with("/readyz", 200));
  ASSERT_TRUE(sim::control::unload_driver(machine_state()));
  EXPECT_TRUE(replies_with("/readyz", 503, "driver: "));
  EXPECT_TRUE(replies_with("/metrics", 200, "gpulet_driver_up 0\n"));
  ASSERT_TRUE(sim::control::load_driver(machine_state()));
  EXPECT_TRUE(replies_with("/readyz", 200));
}

TEST_F(SimPages, AnAgentThatCannotSaveItsStateIsNotReady) {
  start_node();
  ASSERT_TRUE(replies_with("/readyz", 200));
  const std::string file = sim_node().state_dir() + "/health-state";
  std::filesystem::remove(file);
  std::filesystem::create_directories(file + "/in-the-way");  // root writes into a read-only directory too
  ASSERT_TRUE(sim::control::post_xid(machine_state(), 0, kFallenOffTheBus));
  EXPECT_TRUE(replies_with("/readyz", 503, "health state: "));
  EXPECT_TRUE(replies_with("/healthz", 200));
  std::filesystem::remove_all(file);
  EXPECT_TRUE(replies_with("/readyz", 200));
}

TEST_F(SimPages, AnAgentWithoutCdiSpecsIsNotReady) {
  bring_up_node();
  const std::string specs = sim_node().directory() + "/specs";
  ASSERT_TRUE(write_file_atomic(specs, "a file in the place of the directory"));
  start_agent({.arguments = {"--device-list-strategy=cdi-cri", "--cdi-spec-dir=" + specs}});
  EXPECT_TRUE(replies_with("/readyz", 503, "CDI: "));
  std::filesystem::remove(specs);
  EXPECT_TRUE(replies_with("/readyz", 200));
}

TEST_F(SimPages, AnAgentWhoseMpsDaemonsDoNotStartIsNotReady) {
  bring_up_node();
  const std::string control = sim_node().driver_root() + "/usr/bin/nvidia-cuda-mps-control";
  std::filesystem::rename(control, control + ".away");
  write_config("version: v1\nflags: {mpsRoot: " + sim_node().mps_root() +
               "}\nsharing: {mps: {resources: [{name: gpu, replicas: 4}]}}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  EXPECT_TRUE(replies_with("/readyz", 503, "MPS: nvidia.com/gpu"));
  std::filesystem::rename(control + ".away", control);
  EXPECT_TRUE(replies_with("/readyz", 200)) << agent_log();
}

TEST_F(SimPages, CountUnhealthyDevices) {
  start_node();
  ASSERT_TRUE(sim::control::post_xid(machine_state(), 0, kFallenOffTheBus));
  EXPECT_TRUE(
      replies_with("/metrics", 200, "gpulet_devices{resource=\"nvidia.com/gpu\",health=\"Unhealthy\"} 1\n"));
  EXPECT_TRUE(replies_with("/metrics", 200, "gpulet_events_total{reason=\"GPUUnhealthy\"} 1\n"));
}

TEST_F(SimPages, AreOnTheNodesOwnSocketToo) {
  start_node();
  EXPECT_TRUE(becomes_true([&] { return http_get(sim_node().socket(), "/readyz").status == 200; }));
  EXPECT_NE(http_get(sim_node().socket(), "/api/node").body.find(gpu_uuid(7)), std::string::npos);
  // A killed agent leaves its socket; the next one replaces it.
  allow_agent_exit();
  sim_node().kill_agent();
  EXPECT_TRUE(std::filesystem::is_socket(sim_node().socket()));
  EXPECT_EQ(http_get(sim_node().socket(), "/readyz").status, 0);
  start_agent();
  EXPECT_TRUE(becomes_true([&] { return http_get(sim_node().socket(), "/readyz").status == 200; }));
}

TEST_F(SimPages, AConfigMovesTheSocketWithoutARestart) {
  bring_up_node();
  const auto config = [&](const std::string& rest) { write_config("version: v1\ngpulet:\n" + rest); };
  const std::string first = sim_node().directory() + "/first.sock",
                    second = sim_node().directory() + "/second/agent.sock";
  config("  socket: " + first + "\n");
  start_agent({.environment = {"CONFIG_FILE=" + config_path()}, .socket = false});
  ASSERT_TRUE(becomes_true([&] { return http_get(first, "/readyz").status == 200; }));
  const auto agent = sim_node().agent_id();
  const auto mode = [](const std::string& path) { return std::filesystem::status(path).permissions(); };
  EXPECT_EQ(mode(first), std::filesystem::perms(0660));

  config("  socket: " + second + "\n  socketMode: \"0666\"\n");
  ASSERT_TRUE(becomes_true([&] { return http_get(second, "/readyz").status == 200; }));
  EXPECT_EQ(mode(second), std::filesystem::perms(0666));
  EXPECT_FALSE(std::filesystem::exists(first));

  // A path that cannot be used is logged, and everything else continues.
  std::filesystem::permissions(sim_node().directory() + "/second", std::filesystem::perms(0777));
  config("  socket: " + sim_node().directory() + "/second/other.sock\n");
  EXPECT_NE(wait_for_log("ListenFailed", "others may write in this directory").find("(gpulet.socket)"),
            std::string::npos);
  EXPECT_TRUE(replies_with("/readyz", 200));

  config("  socket: \"\"\n");
  EXPECT_TRUE(replies_with("/readyz", 200));
  config("  socket: " + first + "\n");
  EXPECT_TRUE(becomes_true([&] { return http_get(first, "/readyz").status == 200; }));
  EXPECT_EQ(sim_node().agent_id(), agent);
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimPages, RestartsAKilledListener) {
  start_node();
  ASSERT_TRUE(replies_with("/healthz", 200));
  for (int round = 0; round < 2; ++round) {
    std::set<pid_t> children;
    ASSERT_TRUE(becomes_true([&] { return !(children = agent_children()).empty(); }));
    for (const pid_t child : children) ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_TRUE(becomes_true([&] {
      const auto now = agent_children();
      return !now.empty() && now != children;
    }));
    EXPECT_TRUE(replies_with("/healthz", 200));
    EXPECT_TRUE(replies_with("/readyz", 200));
  }
  EXPECT_EQ(registration_count(), 1u);
  admit_pod("all", 8);
}

TEST_F(SimPages, SigtermRemovesTheSockets) {
  start_node();
  ASSERT_NE(listener_port(), 0);
  const std::string socket = sim_kubelet().plugin_dir() + "/nvidia-gpu.sock";
  ASSERT_TRUE(std::filesystem::is_socket(socket));
  ASSERT_TRUE(std::filesystem::is_socket(sim_node().socket()));
  allow_agent_exit();
  const auto took = sim_node().stop_agent();
  ASSERT_TRUE(took) << took.error().full_message();
  EXPECT_FALSE(std::filesystem::exists(socket));
  EXPECT_FALSE(std::filesystem::exists(sim_node().socket()));
  EXPECT_TRUE(wait_for_kubelet([](const auto& state) { return !find_resource(state, kGpu)->connected; }));
  EXPECT_EQ(http_get(listener_port(), "/healthz").status, 0);
}

TEST_F(SimPages, SigtermWorksWhileADriverCallHangs) {
  start_node("hgx-h100",
             {.environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s", "GPULET_DRIVER_CALL_TIMEOUT=300ms"}});
  ASSERT_TRUE(sim::control::hang_calls(machine_state(), 2));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(2)}));
  allow_agent_exit();
  const auto took = sim_node().stop_agent();
  EXPECT_TRUE(took) << took.error().full_message();
}

}  // namespace
}  // namespace gpulet::tests
