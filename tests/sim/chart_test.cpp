// NVIDIA's own chart with only the image changed: its programs side by side, started as its Pods start them
// (command and environment of k8s-device-plugin v0.17 to v0.20, with configs by node label). Only the paths
// of the simulated node and the API server differ.
#include "base/file.h"
#include "tests/sim/node_api.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

// An API server with one node, whose label selects its config, and with NFD's objects.
class SimChart : public NodeTest {
 protected:
  void SetUp() override {
    bring_up_node();
    api_ = std::make_unique<NodeApi>(sim_node().directory(), &nfd_reply);
    ASSERT_TRUE(
        write_file_atomic(configs_directory() + "/default", "version: v1\nflags: {migStrategy: none}\n"));
    ASSERT_TRUE(write_file_atomic(
        configs_directory() + "/shared",
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"));
  }
  void TearDown() override {
    programs_.clear();
    NodeTest::TearDown();
    api_.reset();
  }

  std::string configs_directory() { return sim_node().directory() + "/available-configs"; }
  std::string config_file() { return sim_node().directory() + "/config/config.yaml"; }
  std::string kubeconfig() { return api_->kubeconfig(); }
  void set_node_label(const std::string& value) { api_->set_label("nvidia.com/device-plugin.config", value); }

  // Environment of the chart's init container and sidecar.
  std::vector<std::string> manager_command(bool once, const std::string& process) {
    return {std::string("ONESHOT=") + (once ? "true" : "false"),
            "KUBECONFIG=" + kubeconfig(),
            "NODE_NAME=node-1",
            "NODE_LABEL=nvidia.com/device-plugin.config",
            "CONFIG_FILE_SRCDIR=" + configs_directory(),
            "CONFIG_FILE_DST=" + config_file(),
            "DEFAULT_CONFIG=default",
            "FALLBACK_STRATEGIES=named,single",
            std::string("SEND_SIGNAL=") + (once ? "false" : "true"),
            std::string("SIGNAL=") + (once ? "" : "1"),
            "PROCESS_TO_SIGNAL=" + process};
  }
  Process* start_program(const std::string& name, const std::vector<std::string>& environment,
                         std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), name);
    auto made = Process::spawn({.program = std::string(GPULET_PROGRAMS) + "/gpulet",
                                .arguments = std::move(arguments),
                                .environment = environment});
    EXPECT_TRUE(made) << made.error().full_message();
    if (!made) return nullptr;
    programs_.push_back(std::move(*made));
    return programs_.back().get();
  }
  void run_init_container() {
    auto* once = start_program("config-manager", manager_command(true, ""));
    ASSERT_NE(once, nullptr);
    const auto end = once->wait_for_exit(kTestTimeout);
    ASSERT_TRUE(end);
    ASSERT_TRUE(end->succeeded()) << end->exit_text();
  }
  void plugin_options() {
    start_agent(
        {.name = "nvidia-device-plugin",
         .environment = {"MPS_ROOT=/run/nvidia/mps", "FAIL_ON_INIT_ERROR=true", "PASS_DEVICE_SPECS=false",
                         "DEVICE_LIST_STRATEGY=envvar", "DEVICE_ID_STRATEGY=uuid", "GDRCOPY_ENABLED=false",
                         "GDS_ENABLED=false", "MOFED_ENABLED=false", "CONFIG_FILE=" + config_file(),
                         "NVIDIA_MIG_MONITOR_DEVICES=all", "DEVICE_DISCOVERY_STRATEGY=auto",
                         "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}});
  }
  std::vector<std::string> chart_files(const std::string& method) {
    return api_->request_bodies(method + " /apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpu/nodefeatures");
  }

 private:
  static std::optional<k8s::TestApiServer::Reply> nfd_reply(const k8s::Received& request) {
    const std::string line = request.line();
    if (line.find("/nodefeatures") == std::string::npos) return std::nullopt;
    if (line.starts_with("GET ")) return k8s::TestApiServer::Reply{404, R"({"kind":"Status"})"};
    return k8s::TestApiServer::Reply{201, request.body};
  }

  std::unique_ptr<NodeApi> api_;
  std::vector<std::unique_ptr<Process>> programs_;
};

TEST_F(SimChart, ThePluginPodFollowsTheNodeLabel) {
  run_init_container();
  plugin_options();
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  start_program("config-manager", manager_command(false, "nvidia-device-plugin"));
  set_node_label("shared");
  ASSERT_TRUE(becomes_allocatable(32)) << agent_log();
  const auto grant = admit_pod("trainer", 1);
  EXPECT_EQ(grant.containers.at(0).envs.at("NVIDIA_VISIBLE_DEVICES"), granted_ids(grant).at(0).substr(0, 40));
  set_node_label("");
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_EQ(registration_count(), 1u);
}

TEST_F(SimChart, FeatureDiscoveryWritesItsNfdObject) {
  run_init_container();
  start_program("gpu-feature-discovery",
                {"NODE_NAME=node-1", "NAMESPACE=gpu", "POD_NAME=", "KUBECONFIG=" + kubeconfig(),
                 "MIG_STRATEGY=none", "FAIL_ON_INIT_ERROR=true", "CONFIG_FILE=" + config_file(),
                 "DEVICE_DISCOVERY_STRATEGY=auto", "DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root()});
  ASSERT_TRUE(becomes_true([this] { return !chart_files("POST").empty(); }));
  const auto told = chart_files("POST").front();
  EXPECT_NE(told.find("\"nvidia-features-for-node-1\""), std::string::npos) << told;
  EXPECT_NE(told.find("\"nvidia.com/gpu.count\":\"8\""), std::string::npos) << told;
}

TEST_F(SimChart, TheMpsPodIsIdleWithoutSharing) {
  run_init_container();
  auto* daemon = start_program(
      "mps-control-daemon",
      {"NODE_NAME=node-1", "MIG_STRATEGY=none", "CONFIG_FILE=" + config_file(), "NVIDIA_VISIBLE_DEVICES=all",
       "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root()},
      // The chart mounts it at /mps of a container; this process uses the machine's root.
      {"--root=" + sim_node().mps_root()});
  ASSERT_NE(daemon, nullptr);
  // Its signal handlers are installed once the driver's library is mapped.
  ASSERT_TRUE(becomes_true([&] {
    const auto status = read_file("/proc/" + std::to_string(daemon->pid()) + "/maps");
    return status && status->find(sim_node().driver_root()) != std::string::npos;  // the driver's library
  }));
  daemon->send_signal(SIGTERM);
  const auto end = daemon->wait_for_exit(kTestTimeout);
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->succeeded()) << end->exit_text();
}

}  // namespace
}  // namespace gpulet::tests
