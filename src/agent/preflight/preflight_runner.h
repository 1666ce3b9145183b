// Runs `gpulet preflight` as children of the agent, one a GPU: with an empty environment, its output in
// memory, killed with its process group at the limit. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "base/process.h"
#include "base/types.h"
#include "preflight/preflight_policy.h"
#include "preflight/preflight_report.h"

namespace gpulet::agent {

class PreflightRunner {
 public:
  explicit PreflightRunner(Loop& loop) : loop_(loop) {}
  // Kills all runs, and waits at most kKillGrace for the ends of all together.
  ~PreflightRunner();
  PreflightRunner(const PreflightRunner&) = delete;

  // `program`: "/proc/self/exe". `done` comes once from the loop, at the latest shortly after `limit`, unless
  // this object is destroyed before, which kills the program.
  void start_run(const DeviceUuid& gpu, const std::string& program, std::vector<std::string> arguments,
                 Duration limit, std::function<void(preflight::RunResult)> done);
  // Kills the runs on the GPU; their `done` says that they were killed.
  void kill_runs(const DeviceUuid& gpu);
  // Kills all, then calls `ended` from the loop, once: when none is left, at the latest after kKillGrace.
  void end_runs(std::function<void()> ended);

  // A program that hangs in the kernel outlives SIGKILL.
  static constexpr Duration kKillGrace = std::chrono::seconds(2);

 private:
  struct ChildRun {
    DeviceUuid gpu;
    std::unique_ptr<Process> process;
    FileDescriptor output, errors;
    std::string limit_text;
    std::function<void(preflight::RunResult)> done;  // empty: called
    bool timed_out = false;
    Subscription limit;
  };

  void on_exit(std::uint64_t id, const ProcessExit& exit);
  void on_limit(std::uint64_t id);
  void notify_if_ended();
  static void answer(ChildRun& run, preflight::RunResult result);

  Loop& loop_;
  std::uint64_t last_id_ = 0;
  // One that hangs in the kernel stays until it ends.
  std::map<std::uint64_t, ChildRun> runs_;
  std::vector<std::function<void()>> awaiting_end_;
  Subscription end_limit_;
  Lifetime lifetime_;
};

// Writes the record of preflights, one write at a time, the newest record last. A disk may hang: on a thread
// of its own. Loop's thread only.
class PreflightRecordStore {
 public:
  explicit PreflightRecordStore(Loop& loop) : loop_(loop), relay_(std::make_shared<LoopRelay>(loop)) {}
  ~PreflightRecordStore() { relay_->close_relay(); }
  PreflightRecordStore(const PreflightRecordStore&) = delete;

  // `done` (may be empty) comes from the loop: this record or a newer one is written, or cannot be.
  void save_record(std::string path, preflight::BootRecord record, std::function<void()> done);

 private:
  void write_next();

  Loop& loop_;
  std::vector<std::function<void()>> waiting_;  // for next_
  std::optional<std::pair<std::string, preflight::BootRecord>> next_;
  bool is_writing_ = false;
  std::shared_ptr<LoopRelay> relay_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
