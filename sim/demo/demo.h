// `gpulet-sim demo`: a simulated node from discovery over Pods, a broken and healed GPU and a kubelet restart
// to the agent's exit. Every result that it prints was checked on the kubelet's side of the real protocol.
// Also its node, which tests and benchmarks use too (demo_node.cpp).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/result.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::sim {

// `machine`: as `gpulet-sim machines` lists it, or a YAML file. `details` adds what the commands of each step
// print. Returns 0 if every check passed; else 1, after one line on standard error.
int run_demo(const std::string& machine, bool details);

using Milliseconds = std::chrono::duration<double, std::milli>;

// "2.1 s", "1.3 ms", "840 µs".
std::string duration_text(std::chrono::nanoseconds time);

// A node on this machine, for the demo, the benchmarks and tests/sim: a temporary directory with a simulated
// driver root, the simulated kubelet, and the agent as a process. The destructor ends all of them and removes
// the directory.

// Runs a program to its end and returns its standard output. Errors: kInternal with its standard error if its
// exit code is not 0; kDeadlineExceeded after 30 s.
Result<std::string> program_output(std::vector<std::string> command,
                                   std::vector<std::string> environment = {});

struct AgentOptions {
  std::string name = "gpulet";           // argv[0]; "gpulet" gets the subcommand `agent`
  std::vector<std::string> arguments{};  // added to those with the node's paths
  std::vector<std::string> environment{};
  std::vector<std::string> launcher{};  // a program and its arguments, placed before the agent's command
  bool socket = true;                   // at SimulatedNode::socket(); false: as its config says
};

class SimulatedNode {
 public:
  // Creates the driver root of `machine` with gpulet-sim and starts the kubelet, not the agent. gpulet and
  // gpulet-sim are those in the directory `programs`; empty: the directory of this program.
  static Result<std::unique_ptr<SimulatedNode>> start_node(const std::string& machine,
                                                           const std::string& programs = {});
  ~SimulatedNode();
  SimulatedNode(const SimulatedNode&) = delete;

  // A node has one agent: an earlier one is killed.
  Status start_agent(const AgentOptions& options = {});
  // Leaves the running agent beside the new one, as an update does that starts the new Pod first.
  Status start_next_agent(const AgentOptions& options = {});
  void kill_agent() { agent_.reset(); }
  // The one before start_next_agent().
  gpulet::Process& previous_agent() { return *previous_agent_; }
  void kill_previous_agent() { previous_agent_.reset(); }
  // Waits for the agent to exit. Errors: kDeadlineExceeded.
  Result<ProcessExit> wait_agent(Duration limit) { return agent_->wait_for_exit(limit); }
  // Sends SIGTERM and returns the time until exit. Errors: kInternal if the exit code is not 0.
  Result<std::chrono::nanoseconds> stop_agent();
  void signal_agent(int signal) { agent_->send_signal(signal); }

  // `gpulet-sim ARGUMENTS --root …`, and the same for gpulet with --driver-root.
  Result<std::string> run_gpulet_sim(std::vector<std::string> arguments) const;
  Result<std::string> run_gpulet(std::vector<std::string> arguments) const;
  // The newest message of the agent's log with this `reason`; empty if there is none.
  std::string logged_message(const std::string& reason) const;
  std::string agent_log() const;
  std::size_t agent_resident_bytes() const;
  pid_t agent_id() const { return agent_->pid(); }
  const std::string& directory() const { return directory_; }  // the caller may put files here
  // For a config. A mount there is removed with the node.
  std::string mps_root() const { return directory_ + "/mps"; }
  const std::string& driver_root() const { return driver_root_; }
  std::string state_dir() const { return directory_ + "/state"; }
  // A FIFO that the agent reads as the kernel log until its writer closes it.
  std::string kernel_log() const { return directory_ + "/kmsg"; }
  std::string health_file() const { return directory_ + "/health.json"; }
  std::string socket() const { return directory_ + "/agent.sock"; }

  Kubelet& kubelet() { return *kubelet_; }

 private:
  SimulatedNode() = default;
  std::string directory_, driver_root_, gpulet_program_, sim_program_, log_;
  bool up_ = false;
  std::unique_ptr<Kubelet> kubelet_;
  std::unique_ptr<gpulet::Process> agent_, previous_agent_;  // not sim::Process
};

}  // namespace gpulet::sim
