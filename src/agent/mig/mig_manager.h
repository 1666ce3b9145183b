// Makes the GPUs' MIG layouts match what a rule or label asks for (mig_targets): plans from the hardware,
// then changes one GPU at a time (agent/mig/mig_change.h) while all others stay allocatable.
//
// Before a GPU is touched it is withdrawn, so that no Pod gets a device that is about to go. Then the plan is
// made again with the current holders: an instance that a Pod or process holds is never destroyed. A blocked
// GPU stays as it is, allocatable, and is retried. A mode that the driver leaves pending (Ampere) is set
// again when the processes that hold the GPU have ended, when the driver is acquired, when the GPU's MIG
// changes, and otherwise rarely (kMigModeBackoff). Nothing is kept over a restart: the label and the GPU say
// all. Around each round the operator's hooks run: apply-start before the first GPU is touched, apply-exit at
// the end in any case, and again until it succeeds. Loop's thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/mig/mig_change.h"
#include "agent/mig/mig_ports.h"
#include "base/loop.h"
#include "config/config.h"
#include "config/gpulet_settings.h"
#include "inventory/snapshot.h"
#include "mig/hooks.h"

namespace gpulet::agent {

// The hooks of gpulet.mig.hooksFile. The file is read again before each round, so a change needs no restart.
// Commands get only these variables and their own:
//
//     MIG_PARTED_CONFIG_FILE, MIG_PARTED_HOOKS_FILE   as configured; may be empty
//     MIG_PARTED_SELECTED_CONFIG                      the layout's name; empty if a rule lists devices
//     MIG_PARTED_MODE_CHANGE_ONLY=false, MIG_PARTED_SKIP_RESET=true: the agent resets no GPU
//     GPULET_HOOK                                     "pre-apply-mode"
//     GPULET_GPU                                      the GPU's UUID; around a round all of them, separated
//     by commas
//
// Source of the first five: mig-parted v0.15.0, cmd/nvidia-mig-parted/apply, GetHooksEnvsMap. Destroying it
// kills running commands.
class ConfiguredMigHooks final : public MigHooks {
 public:
  // `settings` is called for every run.
  ConfiguredMigHooks(Loop& loop, std::function<config::MigSettings()> settings,
                     Duration limit = mig::kHookLimit);

  bool are_configured() const override;
  // Errors: an unreadable or invalid file, at apply-start only.
  void run_hooks(mig::HookPoint point, const HookSubject& about, std::function<void(Status)> done) override;

 private:
  Loop& loop_;
  std::function<config::MigSettings()> settings_;
  std::optional<mig::HooksFile> file_;  // of the round
  mig::HookRunner runner_;
};

// Retry of a blocked GPU or failed step.
inline constexpr BackoffLimits kMigBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};

class MigManager {
 public:
  MigManager(MigPorts ports, std::uint64_t seed);
  MigManager(const MigManager&) = delete;

  // The targets of all GPUs and the current snapshot. Call it after every change of either; unchanged input
  // does nothing.
  void set_targets(std::vector<MigTarget> targets, const inventory::SnapshotPtr& snapshot);
  // Whether the agent has the driver. No round starts without it, and refused modes are retried with it.
  void set_driver_open(bool open);

  bool is_busy() const { return busy_; }

 private:
  void start_round();
  void read_next(std::size_t next);
  void evaluate_round();
  void evaluate_targets(std::span<const std::pair<MigTarget, mig::State>> alike);
  bool waits_for_mode(const DeviceUuid& gpu, const mig::Plan& plan);
  void on_mode_refused(const DeviceUuid& gpu);
  void retry_mode(const DeviceUuid& gpu);
  void schedule_mode_retry();
  void next_job();
  void on_change_done(MigChange::Outcome outcome);
  void run_start_hooks(std::function<void(Status)> done);
  void abort_round();
  void end_round();
  void report_event(Reporter::Severity severity, std::string_view reason, const std::string& message);

  MigPorts ports_;
  std::vector<MigTarget> targets_;
  inventory::SnapshotPtr snapshot_;
  std::string done_for_;  // fingerprint of the last round: the same input starts no round
  MigHistory history_;
  MigRound round_;

  bool busy_ = false, run_again_ = false;
  std::vector<std::pair<MigTarget, mig::State>> read_;
  std::deque<MigJob> jobs_;
  std::vector<DeviceUuid> failed_gpus_;  // of this round
  std::unique_ptr<MigChange> change_;
  bool from_label_ = false, refused_ = false, failed_ = false, waiting_ = false;
  bool mode_pending_ = false, mode_failed_ = false;  // a mode change that is not due yet
  bool driver_open_ = true, is_round_due_ = false;
  std::optional<Status> begun_;  // result of apply-start in this round
  bool exit_pending_ = false;    // it ran, and apply-exit did not succeed since
  MigHooks::HookSubject hook_subject_;
  std::set<std::string> reported_, reporting_;
  Backoff backoff_;
  Subscription timer_, mode_timer_;
  std::map<DeviceUuid, std::map<unsigned, Subscription>> holders_;  // of refused modes, by pid
  Lifetime lifetime_;
};

// Calls `ended` once, from the loop, when that process has ended. Empty if it is gone or cannot be watched.
Subscription watch_process_exit(Loop& loop, unsigned pid, std::function<void()> ended);

// The labels of mig-parted's manager: the requested layout, and the outcome.
inline constexpr const char* kMigConfigLabel = "nvidia.com/mig.config";
inline constexpr const char* kMigStateLabel = "nvidia.com/mig.config.state";

// The target of each readable MIG GPU: from a rule of gpulet.partition, else from the node's label. Empty if
// gpulet.mig.manage is false. While the node has the label, nothing is on demand. Pure.
std::vector<MigTarget> mig_targets(const inventory::Snapshot& snapshot, const config::Config& config,
                                   const std::map<std::string, std::string>& labels);

// The layouts that `name` stands for: from gpulet.mig.configFile if set, else derived from the hardware
// (mig/layout.h). Reads the file again. Errors: those of the file; kNotFound for an unknown layout, with the
// nearest names.
Result<std::vector<std::optional<mig::Layout>>> mig_layouts(const config::Config& config,
                                                            const std::string& name,
                                                            std::span<const mig::State> gpus);

}  // namespace gpulet::agent
