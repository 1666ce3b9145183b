// What the node's agent does with the driver, by its report, for commands that wait for it: `gpulet driver`
// and `gpulet mig apply`.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/process.h"
#include "base/result.h"
#include "health/report/node_health.h"

namespace gpulet::cli {

class AgentDriver {
 public:
  // The agent's report and its state directory.
  AgentDriver(std::string health_file, std::string state_dir)
      : health_file_(std::move(health_file)), state_dir_(std::move(state_dir)) {}

  const std::string& state_dir() const { return state_dir_; }
  // Errors: those of ProcessLock::is_locked.
  Result<bool> is_agent_running() const;
  // Errors: those of health::read_report.
  Result<health::HealthView> read_view() const;
  // Calls `check` at once, and after each change of the report and of the agent's lock, until it returns
  // true. Errors: kDeadlineExceeded after `timeout`; kIo if files cannot be watched.
  Status wait_until(const std::function<bool()>& check, Duration timeout) const;

 private:
  std::string presence() const;
  std::string health_file_, state_dir_;
};

// What is wrong with the driver that the agent has acquired: the reason of the first GPU that it cannot read.
std::optional<std::string> missing_driver(const health::HealthView& view);

// The driver, released by the agent for as long as this command works, also if the command is killed
// (agent::lock_release).
class DriverLease {
 public:
  // Waits until the agent has closed the driver. nullopt: no agent is running. Errors: kFailedPrecondition if
  // another command has it; kDeadlineExceeded after `timeout`; those of files.
  static Result<std::optional<DriverLease>> acquire_lease(const AgentDriver& agent, Duration timeout);
  // Lets the agent open the driver, and waits until it has read the GPUs, or stays released for another
  // reason. Errors: as acquire_lease().
  Status end_lease(Duration timeout);

 private:
  DriverLease(AgentDriver agent, ProcessLock lock) : agent_(std::move(agent)), lock_(std::move(lock)) {}
  AgentDriver agent_;
  std::optional<ProcessLock> lock_;
};

}  // namespace gpulet::cli
