// Fixture: a simulated node of branch 615 with an agent that sets the driver's memory limits, Pods at an API
// server, and containers whose hook runs as a process. Needs root and cgroup v2.
#pragma once

#include <gmock/gmock.h>
#include <linux/capability.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "sim/mps/daemon.h"
#include "tests/sim/limited_pods.h"
#include "tests/sim/node_fixture.h"

namespace gpulet::tests {

struct HookOptions {
  std::string name = "main";  // of the container
  std::vector<std::string> arguments{}, environment{};
};

class LimitTest : public NodeTest {
 protected:
  void SetUp() override {
    if (!has_capability(CAP_SYS_ADMIN)) GTEST_SKIP() << "needs CAP_SYS_ADMIN, to make cgroups";
    ASSERT_TRUE(cgroup_mount()) << cgroup_mount().error().full_message();
    bring_up_node("t4");
    const auto loaded = sim_node().run_gpulet_sim({"driver-reload", "--version", "615.71.09"});
    ASSERT_TRUE(loaded) << loaded.error().full_message();
    pods_ = std::make_unique<LimitedPods>(sim_node().directory());
  }
  void TearDown() override {
    containers_.clear();
    NodeTest::TearDown();
    pods_.reset();
  }

  std::string limit_dir() { return sim_node().directory() + "/limits"; }
  // `sharing`: "timeSlicing" or "mps", of `resources`.
  void write_limit_config(const std::string& sharing, const std::string& resources) {
    write_limiting("sharing: {" + sharing + ": {resources: [" + resources + "]}}\n", "");
  }
  // By a rule: four shares of GPU 0 by MPS, with namespaces.
  void write_rule_config(const std::string& resource) {
    write_limiting("", ", partition: [{devices: [0], mps: {replicas: 4, name: " + resource + "}}]");
  }
  // As on the node's host, to the MPS daemon of a resource. Its answer, or why there is none.
  std::string ask_mps(const std::string& daemon, const std::vector<std::string>& arguments) {
    const auto answer = sim::mps::send_arguments(sim_node().mps_root() + "/" + daemon + "/pipe3", arguments);
    if (!answer) return answer.error().full_message();
    return (answer->code == 0 ? "" : "refused: ") + answer->text;
  }
  // What a client gets that connects in a pipe directory and asks for `threads` percent.
  static std::string client_limits(const std::string& pipe_directory, const std::string& threads) {
    const auto client = sim::mps::attach_client(pipe_directory, threads, "");
    return client ? client->limits_text : client.error().full_message();
  }
  // Waits until `count` shares are allocatable.
  void start_limiting_agent(const std::string& resource, std::size_t count) {
    auto environment = pods_->environment();
    environment.emplace_back("GPULET_METRICS_INTERVAL=1s");
    start_agent({.arguments = {"--config-file=" + config_path(), "--pass-device-specs=false"},
                 .environment = std::move(environment),
                 .launcher = cgroup_launcher()});
    ASSERT_TRUE(becomes_allocatable(count, resource)) << agent_log();
  }
  sim::PodGrant admit_to_team(const std::string& name, const std::string& uid,
                              std::vector<sim::ContainerRequest> containers) {
    auto grant = sim_kubelet().admit_pod(
        {.name_space = "team", .name = name, .uid = uid, .containers = std::move(containers)});
    EXPECT_TRUE(grant) << grant.error().full_message();
    return grant ? std::move(*grant) : sim::PodGrant{};
  }

  // A container whose hook has not run.
  TestContainer& make_container(const std::string& uid, std::vector<std::string> environment = {}) {
    const std::string number = std::to_string(containers_.size() + 1);
    auto made = TestContainer::start_container(uid, std::string(64 - number.size(), '0') + number,
                                               std::move(environment));
    EXPECT_TRUE(made) << made.error().full_message();
    containers_.push_back(std::move(*made));
    return *containers_.back();
  }
  // As the runtime calls it before the container's first instruction. The text of its refusal; empty: the
  // container starts.
  std::string run_hook(const TestContainer& container, const std::string& uid, HookOptions options = {}) {
    const std::string state = sim_node().directory() + "/state.json";
    EXPECT_TRUE(write_file_atomic(state, container.oci_state(uid, options.name)));
    std::vector<std::string> command{std::string(GPULET_PROGRAMS) + "/gpulet-hook",
                                     "limit-memory",
                                     "--socket",
                                     limit_dir() + "/agent.sock",
                                     "--container-spec",
                                     state};
    command.insert(command.end(), options.arguments.begin(), options.arguments.end());
    for (auto& option : sanitizer_options()) options.environment.push_back(std::move(option));
    const auto done = sim::program_output(std::move(command), std::move(options.environment));
    return done ? std::string() : done.error().full_message();
  }
  // A hook that asks for a Pod that the agent does not know makes it read all Pods again: otherwise within a
  // minute, and two seconds after a start.
  void refresh_pods() {
    const std::string uid = "0b1d4c8e-1111-4222-8333-000000000000";
    const auto made = TestContainer::start_container(uid, std::string(64, 'f'));
    ASSERT_TRUE(made) << made.error().full_message();
    EXPECT_THAT(run_hook(**made, uid), testing::HasSubstr("the kubelet lists no GPU of container main"));
  }
  // The limits that the driver has: container id → index of the GPU → MiB.
  std::map<std::string, std::map<unsigned, std::uint64_t>> driver_limits() {
    std::map<std::string, std::map<unsigned, std::uint64_t>> limits;
    const auto machine = machine_state().lock_for_read();
    for (const auto& limit : machine->memory.limits) {
      const std::string cgroup = limit.cgroup;
      if (!cgroup.empty()) limits[cgroup.substr(cgroup.rfind('-') + 1, 64)][limit.gpu] = limit.hard >> 20;
    }
    return limits;
  }

  std::unique_ptr<LimitedPods> pods_;
  std::vector<std::unique_ptr<TestContainer>> containers_;

 private:
  void write_limiting(const std::string& sharing, const std::string& settings) {
    write_config("version: v1\nflags: {mpsRoot: " + sim_node().mps_root() +
                 ", plugin: {deviceListStrategy: [cdi-cri], passDeviceSpecs: false}}\n" + sharing +
                 "gpulet: {cdi: {hookDir: " + sim_node().directory() +
                 "/hooks}, fraction: {driverLimits: true, onExceeded: kill, limitDir: " + limit_dir() + "}" +
                 settings + "}\n");
  }
};

}  // namespace gpulet::tests
