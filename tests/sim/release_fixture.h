// Fixtures of a node whose agent lets go of the driver. The simulated driver refuses an unload, a reset and a
// change of the MIG mode while any other process has an NVML session, as a real one does.
#pragma once

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "health/report/health_report.h"
#include "sim/state/clients.h"
#include "tests/sim/node_api.h"
#include "tests/sim/node_fixture.h"
#include "tests/sim/running_command.h"

namespace gpulet::tests {

namespace control = sim::control;

inline constexpr const char* kUpgrade = "paused-for-driver-upgrade";
inline constexpr const char* kUpgradeReason =
    "driver upgrade (node label nvidia.com/gpu.deploy.device-plugin=paused-for-driver-upgrade)";

class SimRelease : public NodeTest {
 protected:
  std::vector<std::string> command_environment() {
    return {"GPULET_STATE_DIR=" + sim_node().state_dir(), "GPULET_HEALTH_FILE=" + sim_node().health_file(),
            "GPULET_KUBELET_DIR=" + sim_node().directory() + "/kubelet",
            "DRIVER_ROOT_CTR_PATH=" + sim_node().driver_root()};
  }
  std::string run_gpulet(int code, std::vector<std::string> arguments) {
    RunningCommand running(std::move(arguments), command_environment());
    EXPECT_EQ(running.exit_code(), code) << running.output_text() << agent_log();
    return running.output_text();
  }
  // The driver root's `nvidia-smi`; its error if it fails.
  std::string smi_error(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), sim_node().driver_root() + "/usr/bin/nvidia-smi");
    const auto output = sim::program_output(std::move(arguments));
    return output ? "" : output.error().full_message();
  }
  // Prints how long `action` takes: the figures of the documentation.
  template <class Action>
  std::chrono::milliseconds print_time(const std::string& what, Action action) {
    const auto start = std::chrono::steady_clock::now();
    action();
    const auto took =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    std::cout << what << ": " << took.count() << " ms\n";
    return took;
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
    bring_up_cluster("hgx-h100");
    start_agent_in_cluster();
  }
  void bring_up_cluster(const std::string& machine) {
    bring_up_node(machine);
    api_ = std::make_unique<NodeApi>(sim_node().directory());
    set_deploy_label("true");
  }
  void start_agent_in_cluster(std::vector<std::string> arguments = {}) {
    start_agent({.arguments = std::move(arguments),
                 .environment = {"KUBECONFIG=" + api_->kubeconfig(), "NODE_NAME=node-1",
                                 "GPULET_FAULTS_EVICTION=true", "GPULET_FAULTS_EVICTION_QUARANTINED=evict",
                                 "GPULET_FAULTS_EVICTION_MAX_UNHEALTHY_GPUS_PERCENT=100"}});
    ASSERT_TRUE(becomes_allocatable(8)) << agent_log();
  }
  void TearDown() override {
    NodeTest::TearDown();
    api_.reset();
  }

  void set_deploy_label(const std::string& value) {
    set_node_label("nvidia.com/gpu.deploy.device-plugin", value);
  }
  void set_node_label(const std::string& key, const std::string& value) { api_->set_label(key, value); }
  std::vector<std::string> request_bodies(const std::string& part) { return api_->request_bodies(part); }

 private:
  std::unique_ptr<NodeApi> api_;
};

}  // namespace gpulet::tests
