// What an operator and the running agent share: the report that `gpulet health` reads (HealthReportWriter),
// the cordons that `gpulet cordon` writes (CordonWatcher), and the lock that shows that an agent is running.
// The config sets their paths; OperatorInterface moves them when the config changes. Loop's thread only.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/ports.h"
#include "agent/node/state_file_watcher.h"
#include "base/loop.h"
#include "base/process.h"
#include "health/report/node_health.h"
#include "health/state/cordons.h"

namespace gpulet::agent {

inline constexpr Duration kReportInterval = std::chrono::milliseconds(100);
// Not for everybody: reasons and details may name what runs on the GPUs.
inline constexpr mode_t kReportMode = 0640;
inline constexpr BackoffLimits kReportBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};

class HealthReportWriter {
 public:
  // An empty `path` writes nothing. `loop` and `reporter` outlive it.
  HealthReportWriter(Loop& loop, Reporter& reporter, std::string path, std::uint64_t seed);
  // Writes a pending report.
  ~HealthReportWriter();
  HealthReportWriter(const HealthReportWriter&) = delete;

  void update_report(const health::HealthViewPtr& view);

 private:
  void write_report();

  Loop& loop_;
  Reporter& reporter_;
  std::string path_;
  health::HealthViewPtr pending_;  // not on disk yet
  Backoff backoff_;
  bool failing_ = false;
  Subscription next_;  // the next write, or the pause after the last one
};

// Files in gpulet.stateDir that the operator's commands share with the agent.
inline std::string cordons_path(const std::string& state_dir) { return state_dir + "/cordons"; }
// Locked (base/process.h) by the agent that follows the cordons of this directory.
inline std::string presence_path(const std::string& state_dir) { return state_dir + "/agent.lock"; }

// Follows the cordons file: sends what `gpulet cordon` and `uncordon` write to the agent, also after a start,
// until the devices match it.
class CordonWatcher {
 public:
  // `send_evidence` passes a command to the agent. A file that cannot be read or watched is reported once;
  // the last known cordons stay. `loop` and `reporter` outlive it.
  CordonWatcher(Loop& loop, Reporter& reporter, std::string path,
                std::function<void(const health::Evidence&)> send_evidence);
  ~CordonWatcher();
  CordonWatcher(const CordonWatcher&) = delete;

  void on_health_view(const health::HealthViewPtr& view);

 private:
  Status read_cordons_file();
  void apply_cordons_soon();
  void apply_cordons();

  Loop& loop_;
  std::string path_;
  std::function<void(const health::Evidence&)> send_evidence_;
  std::optional<health::Cordons> cordons_;  // as last read; nullopt until the file could be read
  health::HealthViewPtr view_;
  using SentCommand = std::pair<health::Scope, health::OperatorAction>;
  std::vector<SentCommand> sent_commands_;  // by the last apply_cordons()
  Subscription apply_timer_;
  StateFileWatcher file_;  // last: it reads the file when it is made
};

// Retry of the agent's lock.
inline constexpr BackoffLimits kPresenceBackoff{std::chrono::seconds(1), std::chrono::seconds(10)};

class OperatorInterface {
 public:
  // `send_evidence` passes a command to the agent. `loop` and `reporter` outlive it.
  OperatorInterface(Loop& loop, Reporter& reporter,
                    std::function<void(const health::Evidence&)> send_evidence, std::uint64_t seed);
  OperatorInterface(const OperatorInterface&) = delete;

  // This process holds the lock at `path` already.
  void set_held_presence(std::string path) { held_presence_ = std::move(path); }
  // gpulet.stateDir and gpulet.healthFile. An empty directory disables lock and cordons, an empty file the
  // report.
  void set_paths(const std::string& state_dir, const std::string& health_file);
  // After every round that changed a status.
  void on_health_view(const health::HealthViewPtr& view);

 private:
  void acquire_presence();

  Loop& loop_;
  Reporter& reporter_;
  std::function<void(const health::Evidence&)> send_evidence_;
  std::uint64_t seed_;
  std::optional<std::string> state_dir_, health_file_;  // as applied
  health::HealthViewPtr view_;
  std::optional<HealthReportWriter> report_;
  std::optional<CordonWatcher> cordons_;
  std::string held_presence_;
  std::optional<ProcessLock> presence_;
  Backoff backoff_;
  bool failure_logged_ = false;
  Subscription retry_;
};

}  // namespace gpulet::agent
