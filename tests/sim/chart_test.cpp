// NVIDIA's own chart with only the image changed: its programs, started as its Pods start them (command and
// environment of k8s-device-plugin v0.17 to v0.20, with configs by node label), beside each other. What
// differs from a Pod is where the simulated node's folders and API server are.
#include <atomic>
#include <map>

#include "base/file.h"
#include "cluster/test_api_server.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {
namespace {

using cluster::Received;
using cluster::TestApiServer;

// An API server that knows one node, whose label chooses its config, and takes what NFD is told.
class SimChart : public NodeTest {
 protected:
  void SetUp() override {
    up();
    authority_ = Certificate::make("kubernetes", nullptr, "");
    certificate_ = Certificate::make("apiserver", &authority_, "127.0.0.1");
    api_ = std::make_unique<TestApiServer>(certificate_,
                                           [this](const Received& request) { return answer(request); });
    const std::string folder = node().folder();
    ASSERT_TRUE(write_file_atomic(folder + "/ca.crt", authority_.pem()));
    ASSERT_TRUE(write_file_atomic(
        kubeconfig(),
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], clusters: [{name: k, "
        "cluster: {server: 'https://127.0.0.1:" +
            std::to_string(api_->port()) + "', certificate-authority: " + folder +
            "/ca.crt}}], users: [{name: u, user: {token: t}}]}"));
    ASSERT_TRUE(write_file_atomic(configs() + "/default", "version: v1\nflags: {migStrategy: none}\n"));
    ASSERT_TRUE(write_file_atomic(
        configs() + "/shared",
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"));
  }
  void TearDown() override {
    programs_.clear();
    NodeTest::TearDown();
    api_.reset();
  }

  std::string configs() { return node().folder() + "/available-configs"; }
  std::string config() { return node().folder() + "/config/config.yaml"; }
  std::string kubeconfig() { return node().folder() + "/kubeconfig"; }
  void label(const std::string& value) {
    ++version_;
    const std::lock_guard lock(mutex_);
    label_ = value;
  }

  // The environment of the chart's init container and sidecar.
  std::vector<std::string> manager(bool once, const std::string& process) {
    return {std::string("ONESHOT=") + (once ? "true" : "false"),
            "KUBECONFIG=" + kubeconfig(),
            "NODE_NAME=node-1",
            "NODE_LABEL=nvidia.com/device-plugin.config",
            "CONFIG_FILE_SRCDIR=" + configs(),
            "CONFIG_FILE_DST=" + config(),
            "DEFAULT_CONFIG=default",
            "FALLBACK_STRATEGIES=named,single",
            std::string("SEND_SIGNAL=") + (once ? "false" : "true"),
            std::string("SIGNAL=") + (once ? "" : "1"),
            "PROCESS_TO_SIGNAL=" + process};
  }
  Process* start(const std::string& name, const std::vector<std::string>& environment,
                 std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), name);
    auto made = Process::start({.program = std::string(GPULET_PROGRAMS) + "/gpulet",
                                .arguments = std::move(arguments),
                                .environment = environment});
    EXPECT_TRUE(made) << made.error().text();
    if (!made) return nullptr;
    programs_.push_back(std::move(*made));
    return programs_.back().get();
  }
  void init() {
    auto* once = start("config-manager", manager(true, ""));
    ASSERT_NE(once, nullptr);
    const auto end = once->wait(kPatience);
    ASSERT_TRUE(end);
    ASSERT_TRUE(end->ok()) << end->text();
  }
  void plugin() {
    start_agent(
        {.name = "nvidia-device-plugin",
         .environment = {"MPS_ROOT=/run/nvidia/mps", "FAIL_ON_INIT_ERROR=true", "PASS_DEVICE_SPECS=false",
                         "DEVICE_LIST_STRATEGY=envvar", "DEVICE_ID_STRATEGY=uuid", "GDRCOPY_ENABLED=false",
                         "GDS_ENABLED=false", "MOFED_ENABLED=false", "CONFIG_FILE=" + config(),
                         "NVIDIA_MIG_MONITOR_DEVICES=all", "DEVICE_DISCOVERY_STRATEGY=auto",
                         "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"}});
  }
  std::vector<std::string> bodies(const std::string& method) {
    std::vector<std::string> found;
    for (const auto& request : api_->received()) {
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
  TestApiServer::Reply answer(const Received& request) {
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
              while (stream.wait(5)) {
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

TEST_F(SimChart, ThePluginsPodFollowsTheNodesLabel) {
  init();
  plugin();
  ASSERT_TRUE(offered(8)) << log();
  start("config-manager", manager(false, "nvidia-device-plugin"));
  label("shared");
  ASSERT_TRUE(offered(32)) << log();
  const auto grant = admit("trainer", 1);
  EXPECT_EQ(grant.containers.at(0).envs.at("NVIDIA_VISIBLE_DEVICES"), ids_of(grant).at(0).substr(0, 40));
  label("");
  ASSERT_TRUE(offered(8)) << log();
  EXPECT_EQ(registrations(), 1u);
}

TEST_F(SimChart, FeatureDiscoveryTellsNfdInItsNamespace) {
  init();
  start("gpu-feature-discovery",
        {"NODE_NAME=node-1", "NAMESPACE=gpu", "POD_NAME=", "KUBECONFIG=" + kubeconfig(), "MIG_STRATEGY=none",
         "FAIL_ON_INIT_ERROR=true", "CONFIG_FILE=" + config(), "DEVICE_DISCOVERY_STRATEGY=auto",
         "DRIVER_ROOT_CTR_PATH=" + node().root(), kNoLeaks});
  ASSERT_TRUE(eventually([this] { return !bodies("POST").empty(); }));
  const auto told = bodies("POST").front();
  EXPECT_NE(told.find("\"nvidia-features-for-node-1\""), std::string::npos) << told;
  EXPECT_NE(told.find("\"nvidia.com/gpu.count\":\"8\""), std::string::npos) << told;
}

TEST_F(SimChart, TheMpsPodIdlesWhereNothingIsShared) {
  init();
  auto* daemon =
      start("mps-control-daemon",
            {"NODE_NAME=node-1", "MIG_STRATEGY=none", "CONFIG_FILE=" + config(), "NVIDIA_VISIBLE_DEVICES=all",
             "NVIDIA_DRIVER_CAPABILITIES=compute,utility", "DRIVER_ROOT_CTR_PATH=" + node().root(), kNoLeaks},
            // The chart mounts it at /mps of a container; this process has the machine's own root.
            {"--root=" + node().mps_root()});
  ASSERT_NE(daemon, nullptr);
  // It has taken the signals that tell it so once it can be told to end without dying of that.
  ASSERT_TRUE(eventually([&] {
    const auto status = read_file("/proc/" + std::to_string(daemon->id()) + "/maps");
    return status && status->find(node().root()) != std::string::npos;  // the driver's library
  }));
  daemon->send_signal(SIGTERM);
  const auto end = daemon->wait(kPatience);
  ASSERT_TRUE(end);
  EXPECT_TRUE(end->ok()) << end->text();
}

}  // namespace
}  // namespace gpulet::tests
