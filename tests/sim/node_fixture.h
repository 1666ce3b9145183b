// What the tests of this folder share: a simulated node of their own (driver root, kubelet, agent as a
// process) in a temporary folder, ways to wait for what must come, and a last look at the agent when the test
// is over.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/simulated_node.h"
#include "sim/control/control.h"
#include "sim/kubelet/kubelet.h"
#include "sim/state/mig.h"
#include "sim/state/state.h"

namespace gpulet::tests {

using namespace std::chrono_literals;

inline constexpr const char* kGpu = "nvidia.com/gpu";
inline constexpr const char* kSmall = "nvidia.com/mig-1g.10gb";
inline constexpr const char* kLarge = "nvidia.com/mig-3g.40gb";
inline constexpr std::uint64_t kFallenOffTheBus = 79;
// For what must come at all: far beyond what it takes, as a sanitized build on a busy machine is slow.
inline constexpr std::chrono::milliseconds kPatience = 40s;

struct HttpAnswer {
  int status = 0;  // 0: no answer
  std::string body;
};
// GET http://127.0.0.1:PORT/PATH, at most 5 s.
HttpAnswer http_get(int port, const std::string& path);
// The same over a Unix socket.
HttpAnswer http_get(const std::string& socket, const std::string& path);

// Null when the kubelet does not know the resource.
const sim::KubeletResource* find(const sim::KubeletState& state, const std::string& resource);
std::set<std::string> healthy_ids(const sim::KubeletResource& resource);
std::set<std::string> unhealthy_ids(const sim::KubeletResource& resource);
std::vector<std::string> ids_of(const sim::PodGrant& grant, const std::string& resource = kGpu);

// What the sanitizers of a sanitized program are told: as this one was.
std::vector<std::string> sanitizer_options();

// For a command that lets go of the driver before it ends: what the simulated one keeps until then is no leak.
inline constexpr const char* kNoLeaks = "ASAN_OPTIONS=detect_leaks=0";

class NodeTest : public testing::Test {
 public:
  static void SetUpTestSuite();

 protected:
  // Each of these fails the test when it cannot.
  void up(const std::string& machine = "hgx-h100");
  void start_agent(cli::AgentOptions options = {});
  // Both, and waits until every GPU is offered.
  void serve(const std::string& machine = "hgx-h100", cli::AgentOptions options = {});
  sim::PodGrant admit(const std::string& pod, unsigned count, const std::string& resource = kGpu);
  void write_config(const std::string& text);
  // Cuts GPU `gpu` up into instances of these profiles ("1g.10gb", or "3g.40gb@4" at that
  // memory slice), one compute instance each. Returns the
  // MIG devices' UUIDs in that order.
  std::vector<std::string> cut_up(std::uint32_t gpu, const std::vector<std::string>& profiles);
  void make_whole(std::uint32_t gpu);

  // Looks again at each line of the agent's log and every 20 ms. False after kPatience.
  bool eventually(const std::function<bool()>& condition);
  // True once the kubelet has so many healthy devices of a connected plugin.
  bool offered(std::size_t count, const std::string& resource = kGpu);
  // True once exactly these are unhealthy.
  bool unhealthy(const std::set<std::string>& ids, const std::string& resource = kGpu);
  bool wait_for(const std::function<bool(const sim::KubeletState&)>& done);
  // The newest message of that reason by the agent that runs now, as soon as there is one that holds `part`.
  std::string said(const std::string& reason, const std::string& part = {});
  // Where its listener is; waits for it.
  int port();

  std::string log() const;  // of the agent that runs now
  bool agent_runs() const;  // false once it has ended, whoever ended it
  std::set<pid_t> agent_children() const;
  std::size_t agent_descriptors() const;
  std::size_t agent_threads() const;
  std::uint64_t registrations(const std::string& resource = kGpu) const;

  cli::SimulatedNode& node() { return *node_; }
  sim::Kubelet& kubelet() { return node_->kubelet(); }
  const sim::StateFile& machine() const { return state_; }
  std::uint32_t gpu_count() const { return state_.read()->gpu_count; }
  std::string uuid(std::uint32_t gpu) const { return state_.read()->gpus[gpu].uuid; }
  std::uint32_t index_of(const std::string& uuid) const;
  std::string config_path() const { return node_->folder() + "/config.yaml"; }

  // Call when the test ends the agent itself: else one that is gone at the end is a failure.
  void agent_may_end() { agent_expected_ = false; }

  void TearDown() override;

 private:
  std::unique_ptr<cli::SimulatedNode> node_;
  sim::StateFile state_;
  std::size_t log_start_ = 0;
  bool agent_expected_ = false;
};

}  // namespace gpulet::tests
