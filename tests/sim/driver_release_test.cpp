// The agent lets go of the driver: by the node labels of NVIDIA's GPU operator and by `gpulet driver
// release`. The simulated driver refuses an unload and a reset while any process has an NVML session, as a
// real one does.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <filesystem>
#include <mutex>

#include "base/file.h"
#include "health/report/health_report.h"
#include "k8s/test_api_server.h"
#include "sim/state/clients.h"
#include "tests/sim/node_fixture.h"
#include "tests/sim/running_command.h"

namespace gpulet::tests {
namespace {

namespace control = sim::control;
using k8s::Received;
using k8s::TestApiServer;

constexpr const char* kUpgrade = "paused-for-driver-upgrade";
constexpr const char* kUpgradeReason =
    "driver upgrade (node label nvidia.com/gpu.deploy.device-plugin=paused-for-driver-upgrade)";
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr std::chrono::seconds kMaxReturn{5};
#else
constexpr std::chrono::seconds kMaxReturn{1};
#endif

class SimRelease : public NodeTest {
 protected:
  std::string run_gpulet(int code, std::vector<std::string> arguments) {
    RunningCommand running(std::move(arguments),
                           {"GPULET_STATE_DIR=" + sim_node().state_dir(),
                            "GPULET_HEALTH_FILE=" + sim_node().health_file(), kNoLeaks});
    EXPECT_EQ(running.exit_code(), code) << running.output_text() << agent_log();
    return running.output_text();
  }
  bool is_driver_held() { return !sim::check_unused(machine_state(), *machine_state().lock_for_read(), {}); }
  std::string sim_error(std::vector<std::string> arguments) {
    const auto output = sim_node().run_gpulet_sim(std::move(arguments));
    return output ? "" : output.error().full_message();
  }
  std::optional<health::DriverRelease> reported_release() {
    const auto report = health::read_report(sim_node().health_file());
    return report ? report->release : std::nullopt;
  }
  bool becomes_released() {
    return becomes_true([this] {
      const auto release = reported_release();
      return release && release->closed;
    });
  }
  // All devices stay listed, none is allocatable.
  bool lists_unhealthy_devices(std::size_t count) {
    return wait_for_kubelet([count](const auto& state) {
      const auto* resource = find_resource(state, kGpu);
      return resource != nullptr && resource->allocatable() == 0 && unhealthy_ids(*resource).size() == count;
    });
  }
};

// With an API server that has the node's labels.
class SimReleaseByLabel : public SimRelease {
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
        directory + "/kubeconfig",
        "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], clusters: [{name: k, "
        "cluster: {server: 'https://127.0.0.1:" +
            std::to_string(api_->port()) + "', certificate-authority: " + directory +
            "/ca.crt}}], users: [{name: u, user: {token: t}}]}"));
    start_agent({.environment = {"KUBECONFIG=" + directory + "/kubeconfig", "NODE_NAME=node-1",
                                 "GPULET_FAULTS_EVICTION=true", "GPULET_FAULTS_EVICTION_QUARANTINED=evict",
                                 "GPULET_FAULTS_EVICTION_MAX_UNHEALTHY_GPUS_PERCENT=100"}});
    ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  }
  void TearDown() override {
    NodeTest::TearDown();
    api_.reset();
  }

  void set_deploy_label(const std::string& value) {
    const std::lock_guard lock(mutex_);
    ++version_;
    label_ = value;
  }
  // The bodies of requests whose line contains `part`.
  std::vector<std::string> request_bodies(const std::string& part) {
    std::vector<std::string> found;
    for (const auto& request : api_->received_requests()) {
      if (request.line().find(part) != std::string::npos) found.push_back(request.body);
    }
    return found;
  }

 private:
  std::string node_object() {
    const std::lock_guard lock(mutex_);
    return R"({"metadata":{"name":"node-1","resourceVersion":")" + std::to_string(version_) +
           R"(","labels":{"nvidia.com/gpu.deploy.device-plugin":")" + label_ +
           R"("}},"spec":{"taints":[]},"status":{"conditions":[]}})";
  }
  TestApiServer::Reply api_reply(const Received& request) {
    const std::string line = request.line();
    if (line.find("/nodes") == std::string::npos) return {404, R"({"kind":"Status"})"};
    if (line.find("/nodes?") == std::string::npos) return {200, node_object()};
    if (line.find("watch=true") == std::string::npos) {
      return {200, R"({"metadata":{"resourceVersion":")" + std::to_string(version_) + R"("},"items":[)" +
                       node_object() + "]}"};
    }
    // The watch begins at the version of the list: a change in between is an event.
    constexpr std::string_view kFrom = "resourceVersion=";
    const auto from = line.find(kFrom);
    int listed = 0;
    if (from != std::string::npos)
      std::from_chars(line.data() + from + kFrom.size(), line.data() + line.size(), listed);
    return {.status = 200, .script = [this, seen = listed](TestApiServer::Stream& stream) mutable {
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
  std::mutex mutex_;
  std::atomic<int> version_{1};
  std::string label_ = "true";
};

TEST_F(SimReleaseByLabel, ADriverUpgradeWithPodsThatKeepTheirDevices) {
  const auto grant = admit_pod("trainer", 2);
  EXPECT_NE(sim_error({"driver-unload"}).find("in use by: "), std::string::npos);
  EXPECT_TRUE(is_driver_held());

  set_deploy_label(kUpgrade);
  ASSERT_TRUE(lists_unhealthy_devices(8)) << agent_log();
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_EQ(reported_release()->reason, kUpgradeReason);
  const auto report = health::read_report(sim_node().health_file());
  ASSERT_TRUE(report);
  for (const auto& device : report->devices) {
    EXPECT_NE(device.status.reason.find(std::string("the driver is released: ") + kUpgradeReason),
              std::string::npos)
        << device.status.reason;
  }
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(sim_error({"driver-unload"}), "");
  EXPECT_EQ(sim_error({"driver-load", "--version", "580.95.05"}), "");
  EXPECT_FALSE(is_driver_held()) << "it stays released";
  EXPECT_TRUE(lists_unhealthy_devices(8));

  const auto start = std::chrono::steady_clock::now();
  set_deploy_label("true");
  ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  EXPECT_LT(std::chrono::steady_clock::now() - start, kMaxReturn);
  EXPECT_TRUE(becomes_true([this] { return !reported_release(); }));
  EXPECT_EQ(registration_count(), 1u);
  EXPECT_EQ(granted_ids(sim_kubelet().kubelet_state().grants.at("trainer")), granted_ids(grant));
  EXPECT_TRUE(request_bodies("/eviction").empty());
  EXPECT_TRUE(becomes_true([this] {
    const auto bodies = request_bodies("/nodes/node-1/status");
    return std::ranges::any_of(
        bodies, [](const auto& body) { return body.find("DriverReleased") != std::string::npos; });
  }));
  for (const auto& body : request_bodies("/nodes/node-1/status"))
    EXPECT_EQ(body.find(R"("status":"False")"), std::string::npos) << body;
  // Its events are received too.
  ASSERT_TRUE(control::post_xid(machine_state(), 7, kFallenOffTheBus));
  EXPECT_TRUE(becomes_unhealthy({gpu_uuid(7)}));
}

TEST_F(SimReleaseByLabel, AcquireIsRefusedWhileALabelPauses) {
  set_deploy_label(kUpgrade);
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_NE(run_gpulet(1, {"driver", "acquire"}).find(kUpgradeReason), std::string::npos);
  EXPECT_EQ(run_gpulet(0, {"driver", "release", "--reason", "riser"}),
            std::string("released: riser; ") + kUpgradeReason + "\n");
  EXPECT_NE(run_gpulet(1, {"driver", "acquire"}).find(kUpgradeReason), std::string::npos);
  set_deploy_label("true");
  EXPECT_TRUE(becomes_allocatable(8)) << agent_log();
}

TEST_F(SimRelease, AResetBetweenReleaseAndAcquire) {
  start_node();
  EXPECT_EQ(run_gpulet(0, {"driver", "status"}), "acquired\n");
  EXPECT_NE(sim_error({"reset", "3"}).find("in use by: "), std::string::npos);
  EXPECT_EQ(run_gpulet(0, {"driver", "release", "--reason", "firmware update"}),
            "released: firmware update\n");
  EXPECT_FALSE(is_driver_held());
  EXPECT_TRUE(lists_unhealthy_devices(8));
  EXPECT_EQ(sim_error({"reset", "3"}), "");
  EXPECT_EQ(run_gpulet(3, {"driver", "status"}), "released: firmware update\n");
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "acquired\n");
  EXPECT_TRUE(becomes_allocatable(8));
  EXPECT_TRUE(is_driver_held());
  EXPECT_EQ(registration_count(), 1u);
}

TEST_F(SimRelease, OutlastsARestartOfTheAgent) {
  start_node();
  run_gpulet(0, {"driver", "release"});
  sim_node().kill_agent();
  EXPECT_EQ(run_gpulet(3, {"driver", "status"}),
            "no agent is running on this node; it will start released: gpulet driver release\n");
  std::filesystem::remove(sim_node().health_file());
  start_agent();
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "acquired\n");
  EXPECT_TRUE(becomes_allocatable(8));

  sim_node().kill_agent();
  EXPECT_NE(run_gpulet(0, {"driver", "release"}).find("no agent is running"), std::string::npos);
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "saved; no agent is running on this node\n");
  start_agent();
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRelease, AMissingDriverIsReportedOnAcquire) {
  start_node();
  run_gpulet(0, {"driver", "release"});
  ASSERT_TRUE(control::unload_driver(machine_state(), control::Clients::kRefuse));
  EXPECT_NE(run_gpulet(1, {"driver", "acquire"}).find("the driver is acquired, but the GPUs cannot be read"),
            std::string::npos);
  EXPECT_NE(run_gpulet(3, {"driver", "status"}).find("acquired, but"), std::string::npos);
  ASSERT_TRUE(control::load_driver(machine_state(), "575.57.08"));
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRelease, AHangingCallDelaysTheRelease) {
  start_node("hgx-h100", {.environment = {"GPULET_HEALTH_LIVENESS_INTERVAL=1s"}});
  ASSERT_TRUE(control::hang_calls(machine_state(), 2));
  ASSERT_TRUE(becomes_unhealthy({gpu_uuid(2)})) << agent_log();
  EXPECT_NE(run_gpulet(1, {"driver", "release", "--timeout", "2s"}).find("within 2s"), std::string::npos);
  EXPECT_NE(wait_for_log("DriverNotReleased"), "");
  EXPECT_TRUE(is_driver_held());
  ASSERT_TRUE(control::heal_faults(machine_state(), std::nullopt));
  ASSERT_TRUE(becomes_released()) << agent_log();
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(run_gpulet(0, {"driver", "acquire"}), "acquired\n");
  EXPECT_TRUE(becomes_allocatable(8));
}

TEST_F(SimRelease, StopsUnusedMpsDaemons) {
  bring_up_node();
  constexpr const char* kShared = "nvidia.com/gpu.shared";
  write_config("version: v1\nflags: {mpsRoot: " + sim_node().mps_root() +
               "}\nsharing: {mps: {resources: [{name: gpu, devices: [0, 1], rename: gpu.shared, replicas: "
               "2}]}}\n");
  start_agent({.arguments = {"--config-file=" + config_path()}});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
  const auto daemons = [this] {
    std::size_t count = 0;
    for (const auto child : agent_children()) {
      const auto name = read_file("/proc/" + std::to_string(child) + "/comm");
      count += name && name->starts_with("nvidia-cuda-mps") ? 1 : 0;
    }
    return count;
  };
  const auto compute_mode = [this] { return machine_state().lock_for_read()->gpus[0].compute_mode; };
  EXPECT_EQ(compute_mode(), 3u);
  run_gpulet(0, {"driver", "release"});
  EXPECT_EQ(compute_mode(), 0u) << "restored before the driver was closed";
  EXPECT_FALSE(is_driver_held());
  EXPECT_EQ(daemons(), 0u);
  run_gpulet(0, {"driver", "acquire"});
  ASSERT_TRUE(becomes_allocatable(4, kShared)) << agent_log();

  admit_pod("client", 1, kShared);
  run_gpulet(0, {"driver", "release"});
  EXPECT_NE(wait_for_log("MpsDaemonsInUse", "client"), "");
  EXPECT_EQ(compute_mode(), 3u) << "the daemon of a Pod goes on";
  run_gpulet(0, {"driver", "acquire"});
  EXPECT_TRUE(becomes_allocatable(4, kShared)) << agent_log();
}

}  // namespace
}  // namespace gpulet::tests
