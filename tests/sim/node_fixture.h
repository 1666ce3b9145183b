// Fixture of these tests: a simulated node (driver root, kubelet, agent as a process) in a temporary
// directory, waiting helpers, and a final check of the agent.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "sim/control/control.h"
#include "sim/demo/demo.h"
#include "sim/kubelet/kubelet.h"
#include "sim/state/mig.h"
#include "sim/state/state.h"

namespace gpulet::tests {

using namespace std::chrono_literals;

inline constexpr const char* kGpu = "nvidia.com/gpu";
inline constexpr const char* kSmall = "nvidia.com/mig-1g.10gb";
inline constexpr const char* kLarge = "nvidia.com/mig-3g.40gb";
inline constexpr std::uint64_t kFallenOffTheBus = 79;
// Timeout for anything that must happen; generous, because sanitized builds on busy machines are slow.
inline constexpr std::chrono::milliseconds kTestTimeout = 40s;

struct HttpReply {
  int status = 0;  // 0: no response
  std::string body;
};
// GET http://127.0.0.1:PORT/PATH, with a timeout of 5 s.
HttpReply http_get(int port, const std::string& path);
// The same over a Unix socket.
HttpReply http_get(const std::string& socket, const std::string& path);

// Returns null if the kubelet does not have the resource.
const sim::KubeletResource* find_resource(const sim::KubeletState& state, const std::string& resource);
std::set<std::string> healthy_ids(const sim::KubeletResource& resource);
std::set<std::string> unhealthy_ids(const sim::KubeletResource& resource);
std::vector<std::string> granted_ids(const sim::PodGrant& grant, const std::string& resource = kGpu);

// Returns the sanitizer options of this process, for programs that it starts.
std::vector<std::string> sanitizer_options();

class NodeTest : public testing::Test {
 public:
  static void SetUpTestSuite();

 protected:
  // Each of these fails the test on an error.
  void bring_up_node(const std::string& machine = "hgx-h100");
  void start_agent(sim::AgentOptions options = {});
  // bring_up_node() and start_agent(), and waits until every GPU is offered.
  void start_node(const std::string& machine = "hgx-h100", sim::AgentOptions options = {});
  // As start_agent(), and leaves the running agent beside the new one.
  void start_next_agent(sim::AgentOptions options = {});
  sim::PodGrant admit_pod(const std::string& pod, unsigned count, const std::string& resource = kGpu);
  void write_config(const std::string& text);
  // Creates MIG devices of these profiles on GPU `gpu` ("1g.10gb", or "3g.40gb@4" at that memory slice), with
  // one compute instance each. Returns their UUIDs in that order.
  std::vector<std::string> create_mig_devices(std::uint32_t gpu, const std::vector<std::string>& profiles);
  void remove_mig_devices(std::uint32_t gpu);

  // Checks the condition at each log line of the agent and every 20 ms. Returns false after kTestTimeout.
  bool becomes_true(const std::function<bool()>& condition);
  // Waits until the kubelet has `count` healthy devices of a connected plugin.
  bool becomes_allocatable(std::size_t count, const std::string& resource = kGpu);
  // Waits until exactly these are unhealthy.
  bool becomes_unhealthy(const std::set<std::string>& ids, const std::string& resource = kGpu);
  bool wait_for_kubelet(const std::function<bool(const sim::KubeletState&)>& done);
  // Waits for a log message of the running agent with that reason and `part`. Returns the newest.
  std::string wait_for_log(const std::string& reason, const std::string& part = {});
  // Waits for the listener and returns its port.
  int listener_port();

  std::string agent_log() const;  // of the running agent
  bool is_agent_running() const;  // false once it has ended for any reason
  std::set<pid_t> agent_children() const;
  std::size_t agent_descriptors() const;
  std::size_t agent_threads() const;
  std::uint64_t registration_count(const std::string& resource = kGpu) const;

  sim::SimulatedNode& sim_node() { return *node_; }
  sim::Kubelet& sim_kubelet() { return node_->kubelet(); }
  const sim::StateFile& machine_state() const { return state_; }
  std::uint32_t gpu_count() const { return state_.lock_for_read()->gpu_count; }
  std::string gpu_uuid(std::uint32_t gpu) const { return state_.lock_for_read()->gpus[gpu].uuid; }
  std::uint32_t gpu_index(const std::string& uuid) const;
  std::string config_path() const { return node_->directory() + "/config.yaml"; }

  // Call if the test ends the agent itself: otherwise an ended agent fails the test.
  void allow_agent_exit() { agent_expected_ = false; }

  void TearDown() override;

 private:
  std::unique_ptr<sim::SimulatedNode> node_;
  sim::StateFile state_;
  std::size_t log_start_ = 0;
  bool agent_expected_ = false;
};

}  // namespace gpulet::tests
