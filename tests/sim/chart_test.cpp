// NVIDIA's own chart with only the image changed: its programs side by side, started as its Pods start them
// (command and environment of k8s-device-plugin v0.17 to v0.20, with configs by node label). Only the paths
// of the simulated node and the API server differ.
#include <atomic>
#include <map>

#include "base/file.h"
#include "k8s/test_api_server.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

using k8s::Received;
using k8s::TestApiServer;

// An API server with one node, whose label selects its config, and with NFD's objects.
class SimChart : public NodeTest {
 protected:
  void SetUp() override {
    bring_up_node();
    authority_ = Certificate::make_certificate("kubernetes", nullptr, "");
    certificate_ = Certificate::make_certificate("apiserver", &authority_, "127.0.0.1");
    api_ = std::make_unique<TestApiServer>(certificate_,
                                           [this](const Received& request) { return api_reply(request); });
    const std::string directory = sim_node().directory();
    ASSERT_TRUE(write_file_atomic(directory + "/ca.crt", authority_.pem()));
    ASSERT_TRUE(write_file_atomic(
        kubeconfig(),
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], clusters: [{name: k, "
        "cluster: {server: 'https://127.0.0.1:" +
            std::to_string(api_->port()) + "', certificate-authority: " + directory +
            "/ca.crt}}], users: [{name: u, user: {token: t}}]}"));
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
  std::string kubeconfig() { return sim_node().directory() + "/kubeconfig"; }
  void set_node_label(const std::string& value) {
    ++version_;
    const std::lock_guard lock(mutex_);
    label_ = value;
  }

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
    std::vector<std::string> found;
    for (const auto& request : api_->received_requests()) {
      if (request.line().starts_with(method +
                                     " /apis/nfd.k8s-sigs.io/v1alpha1/namespaces/gpu/nodefeatures")) {
        found.push_back(request.body);
      }
    }
    return found;
  }

 private:
  std::string node_object() {
    const std::lock_guard lock(mutex_);
    const std::string labels = label_.empty() ? "" : R"("nvidia.com/device-plugin.config":")" + label_ + "\"";
    return R"({"metadata":{"name":"node-1","resourceVersion":")" + std::to_string(version_) +
           R"(","labels":{)" + labels + "}}}";
  }
  TestApiServer::Reply api_reply(const Received& request) {
    const std::string line = request.line();
    if (line.find("/nodefeatures") != std::string::npos) {
      if (line.starts_with("GET ")) return {404, R"({"kind":"Status"})"};
      return {201, request.body};
    }
    if (line.find("/nodes?") == std::string::npos) return {404, R"({"kind":"Status"})"};
    if (line.find("watch=true") == std::string::npos) {
      return {200, R"({"metadata":{"resourceVersion":")" + std::to_string(version_) + R"("},"items":[)" +
                       node_object() + "]}"};
    }
    return {.status = 200, .script = [this, seen = version_.load()](TestApiServer::Stream& stream) mutable {
              while (stream.wait_open(5)) {
                if (version_ == seen) continue;
                seen = version_;
                stream.chunk(R"({"type":"MODIFIED","object":)" + node_object() + "}\n");
              }
              return false;
            }};
  }

  Certificate authority_, certificate_;
  std::unique_ptr<TestApiServer> api_;
  std::vector<std::unique_ptr<Process>> programs_;
  std::atomic<int> version_{1};
  std::mutex mutex_;
  std::string label_;
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
  start_program(
      "gpu-feature-discovery",
      {"NODE_NAME=node-1", "NAMESPACE=gpu", "POD_NAME=", "KUBECONFIG=" + kubeconfig(), "MIG_STRATEGY=none",
       "FAIL_ON_INIT_ERROR=true", "CONFIG_FILE=" + config_file(), "DEVICE_DISCOVERY_STRATEGY=auto",
       "DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root(), kNoLeaks});
  ASSERT_TRUE(becomes_true([this] { return !chart_files("POST").empty(); }));
  const auto told = chart_files("POST").front();
  EXPECT_NE(told.find("\"nvidia-features-for-node-1\""), std::string::npos) << told;
  EXPECT_NE(told.find("\"nvidia.com/gpu.count\":\"8\""), std::string::npos) << told;
}

TEST_F(SimChart, TheMpsPodIsIdleWithoutSharing) {
  run_init_container();
  auto* daemon =
      start_program("mps-control-daemon",
                    {"NODE_NAME=node-1", "MIG_STRATEGY=none", "CONFIG_FILE=" + config_file(),
                     "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
                     "DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root(), kNoLeaks},
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
