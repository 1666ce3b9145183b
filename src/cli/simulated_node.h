// A node on this machine, for the demo, the benchmarks and tests/sim: a folder of its own with a simulated
// driver root, the embedded kubelet, and the agent as a process. All that it starts ends with it, and the
// folder goes.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/result.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::cli {

// Runs a program to its end and returns what it printed. Errors: kInternal with its standard error's first
// line when its exit code is not 0; kDeadlineExceeded after 30 s.
Result<std::string> output_of(std::vector<std::string> command, std::vector<std::string> environment = {});

struct AgentOptions {
  std::string name = "gpulet";           // what it is called by; "gpulet" is given the subcommand `agent`
  std::vector<std::string> arguments{};  // beside those that say where the node's parts are
  std::vector<std::string> environment{};
  std::vector<std::string> launcher{};  // a program and its arguments, after which the agent's command comes
  bool socket = true;                   // at SimulatedNode::socket(); false: where its config says
};

class SimulatedNode {
 public:
  // Lays out `machine` with gpulet-sim, starts the embedded kubelet. The agent is not started yet. gpulet and
  // gpulet-sim are those in `programs`; empty: this program, and the one beside it.
  static Result<std::unique_ptr<SimulatedNode>> start(const std::string& machine,
                                                      const std::string& programs = {});
  ~SimulatedNode();
  SimulatedNode(const SimulatedNode&) = delete;

  // The node has one agent at a time: an earlier one is killed.
  Status start_agent(const AgentOptions& options = {});
  void kill_agent() { agent_.reset(); }
  // Waits for its end. Errors: kDeadlineExceeded.
  Result<ProcessExit> wait_agent(Duration limit) { return agent_->wait(limit); }
  // SIGTERM; the time until it is gone. Errors: kInternal when its exit code is not 0.
  Result<std::chrono::nanoseconds> stop_agent();
  void signal_agent(int signal) { agent_->send_signal(signal); }

  // `gpulet-sim ARGUMENTS --root …`, and the same for gpulet with --driver-root.
  Result<std::string> sim(std::vector<std::string> arguments) const;
  Result<std::string> gpulet(std::vector<std::string> arguments) const;
  // The newest message of the agent's log whose reason is `reason`; empty when there is none yet.
  std::string agent_said(const std::string& reason) const;
  std::string agent_log() const;
  std::size_t agent_resident_bytes() const;
  pid_t agent_id() const { return agent_->id(); }
  const std::string& folder() const { return folder_; }  // for the caller's own files too
  // For a config; what is mounted there goes with the node.
  std::string mps_root() const { return folder_ + "/mps"; }
  const std::string& root() const { return root_; }  // the driver root
  std::string state_dir() const { return folder_ + "/state"; }
  // A FIFO that the agent takes for the kernel's log, until its writer closes it.
  std::string kernel_log() const { return folder_ + "/kmsg"; }
  std::string health_file() const { return folder_ + "/health.json"; }
  std::string socket() const { return folder_ + "/agent.sock"; }

  sim::Kubelet& kubelet() { return *kubelet_; }

 private:
  SimulatedNode() = default;
  std::string folder_, root_, self_, sim_program_, log_;
  bool up_ = false;
  std::unique_ptr<sim::Kubelet> kubelet_;
  std::unique_ptr<Process> agent_;
};

}  // namespace gpulet::cli
