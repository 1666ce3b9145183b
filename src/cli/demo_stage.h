// What the demo stands on: a folder of its own with a simulated driver root, the embedded kubelet and the agent as a
// process, and the lines that it prints. All that it starts ends with it, and the folder goes.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/process.h"
#include "base/result.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::cli {

using Milliseconds = std::chrono::duration<double, std::milli>;

// "1.3 ms", "840 µs".
std::string text_of(std::chrono::nanoseconds time);

// Narration: headings, steps and results; colour and weight only on a terminal.
class Narrator {
 public:
  Narrator();
  void heading(const std::string& text);
  void command(const std::string& text);  // what a person could type
  void say(const std::string& text);
  void done(const std::string& text);     // a claim that was seen to hold
  void block(const std::string& text);    // a program's own output, indented

 private:
  bool colour_;
  std::chrono::steady_clock::time_point start_;
  int step_ = 0;
};

// Runs a program to its end and returns what it printed. Errors: kInternal with its standard error's first line when
// its exit code is not 0; kDeadlineExceeded after 30 s.
Result<std::string> output_of(std::vector<std::string> command, std::vector<std::string> environment = {});

class DemoStage {
 public:
  // Lays out `machine` with gpulet-sim (found beside this program), starts the embedded kubelet. The agent is not
  // started yet.
  static Result<std::unique_ptr<DemoStage>> set(const std::string& machine);
  ~DemoStage();
  DemoStage(const DemoStage&) = delete;

  Status start_agent();
  // SIGTERM; the time until it is gone.
  Result<std::chrono::nanoseconds> stop_agent();

  // `gpulet-sim ARGUMENTS --root …`, and the same for gpulet with --driver-root.
  Result<std::string> sim(std::vector<std::string> arguments) const;
  Result<std::string> gpulet(std::vector<std::string> arguments) const;
  // The newest message of the agent's log whose reason is `reason`; empty when there is none yet.
  std::string agent_said(const std::string& reason) const;
  std::size_t agent_resident_bytes() const;

  sim::Kubelet& kubelet() { return *kubelet_; }

 private:
  DemoStage() = default;
  std::string folder_, root_, self_, sim_program_, log_;
  bool up_ = false;
  std::unique_ptr<sim::Kubelet> kubelet_;
  std::unique_ptr<Process> agent_;
};

}  // namespace gpulet::cli
