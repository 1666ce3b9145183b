// The change of one GPU's MIG layout, from planning to the agent's own reading of the result:
//
//     plan ─▶ withdraw ─▶ plan ─▶ hooks ─▶ plan ─▶ apply ─▶ verify ─▶ allocatable again
//
// Each step plans again with the current holders. A blocked plan ends the change and leaves the GPU as it is,
// except for Pods that may be evicted (MigDrain) and processes that hooks may stop. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/mig/mig_ports.h"
#include "base/loop.h"

namespace gpulet::agent {

// A drain ends after this time: the GPU returns unchanged and is retried with the backoff.
inline constexpr Duration kMigDrainLimit = std::chrono::minutes(10);
inline constexpr BackoffLimits kMigDrainBackoff{std::chrono::minutes(1), std::chrono::minutes(30)};
// Interval of PodResources during a drain.
inline constexpr Duration kMigDrainPoll = std::chrono::seconds(1);
// How long a container's processes may outlive the kubelet's record of it; later ones belong to no Pod.
inline constexpr Duration kMigProcessGrace = std::chrono::seconds(10);

// The names of those `pods` that block the plan. Pure.
std::vector<std::string> blocking_pods(const mig::Plan& plan, const mig::PodsByDevice& pods);

// Whether only Pods, and processes on the same devices, block the plan. If a process alone holds a device,
// draining Pods would not help. Pure.
bool can_drain(const mig::Plan& plan);

class MigDrain {
 public:
  using ReportEvent =
      std::function<void(Reporter::Severity, std::string_view reason, const std::string& message)>;

  // `gpu` ("GPU 3") and `reason` ("the label …") are for reports.
  MigDrain(const MigPorts& ports, std::string gpu, std::string reason, ReportEvent report);

  // One poll: `pods` still block the plan; if empty, only processes do. Evicts Pods that are new. Returns why
  // the drain failed; nullopt while it goes on.
  std::optional<std::string> advance_drain(const std::vector<std::string>& pods);

 private:
  void evict_pods(std::vector<std::string> pods);
  void on_eviction_event(const k8s::EvictionUpdate& update);

  const MigPorts& ports_;
  const std::string gpu_, reason_;
  ReportEvent report_;
  const Time deadline_;
  std::set<std::string> requested_;
  std::map<std::string, std::string> waiting_;  // the reason, by Pod
  std::optional<std::string> failure_;
  std::optional<Time> empty_since_;  // of Pods
  std::vector<std::unique_ptr<k8s::Eviction>> evictions_;
};

// From withdrawing a GPU until the kubelet is asked for its holders: an Allocate that was answered before is
// recorded by then. Source: the kubelet records a Pod's devices right after Allocate's answer.
inline constexpr Duration kMigSettleTime = std::chrono::milliseconds(250);
// The longest time that a changed GPU stays withdrawn until a snapshot shows its new layout.
inline constexpr Duration kMigVerifyTimeout = std::chrono::seconds(5);

// Retry of a mode change that the driver refused because the GPU is in use; the agent closes the driver for
// each. A holder that is not seen may be a command such as nvidia-smi, which ends at once; the end of one
// that is seen is watched, and the retry is only for what prevents that.
inline constexpr BackoffLimits kMigModeBackoff{std::chrono::seconds(2), std::chrono::minutes(30)};
inline constexpr Duration kMigSeenHolderRetry = std::chrono::minutes(1);

// What is remembered about the GPUs while the targets are the same.
struct MigHistory {
  // GPUs that processes still blocked after their hooks ran: the hooks are not run again.
  std::set<DeviceUuid> ineffective_hooks;
  struct Drain {
    Backoff backoff;
    Time not_before;
  };
  std::map<DeviceUuid, Drain> drains;  // failed ones
  // A mode change that did not take effect.
  struct RefusedMode {
    Backoff backoff;
    Time not_before{};     // max(): until the GPU's mode changes
    bool is_due = false;   // not_before has passed, and nothing has been tried since
    bool pending = false;  // the GPU has the mode pending; else the change was rolled back
    std::vector<mig::DeviceHolder> holders{};
    std::string_view event_reason{};
    std::string message{};
  };
  std::map<DeviceUuid, RefusedMode> refused_modes;
};

// Shared by the changes of one round.
struct MigRound {
  const MigPorts& ports;
  MigHistory& history;
  std::uint64_t seed;
  MigDrain::ReportEvent report;  // reports each message once
  // Runs before the first GPU is touched. An error, already reported: touch none.
  std::function<void(std::function<void(Status)>)> begin;
  std::function<bool()> is_cancelled;  // the targets have changed
};

struct MigJob {
  MigTarget target;
  mig::Layout layout;
  // Second pass: GPUs without Pods in the way were changed first.
  bool may_drain = false;
};

class MigChange {
 public:
  // kModeRefused: see MigHistory::refused_modes.
  enum class Outcome { kDone, kWaiting, kFailed, kDrainLater, kModeRefused };

  // `done` is called once, from the loop, and may destroy this. `round` outlives it.
  MigChange(const MigRound& round, MigJob job, inventory::SnapshotPtr snapshot,
            std::function<void(Outcome)> done);
  MigChange(const MigChange&) = delete;

  void start_change() { read_pods(); }
  void on_new_snapshot(const inventory::SnapshotPtr& snapshot);

 private:
  enum class Stage { kAllocatable, kWithdrawn, kHooked };

  void read_pods();
  bool lacks_allocations() const;
  void on_pods(Result<mig::PodsByDevice> pods);
  void on_state(const mig::PodsByDevice& pods, Result<mig::State> state);
  void on_blocked(const mig::Plan& plan, const mig::PodsByDevice& pods, const mig::State& state);
  void drain_gpu(const mig::Plan& plan, const std::vector<std::string>& pods);
  void proceed(const mig::Plan& plan, const mig::State& state);
  void begin_touching(bool with_hooks);
  void withdraw_gpu();
  void run_hooks(bool mode, bool instances);
  void on_hook(const Status& status, bool more);
  void apply_plan(const mig::Plan& plan);
  void on_applied(const mig::Plan& plan, const Result<MigApplied>& applied);
  void refuse_mode(const MigApplied& applied, std::string_view event_reason, const std::string& message);
  void await_verification();
  bool is_verified() const;
  bool hooks_have_run() const;
  bool should_drain(const mig::Plan& plan) const;
  void finish_change(Outcome outcome);

  const MigRound& round_;
  const MigPorts& ports_;
  const MigJob job_;
  inventory::SnapshotPtr snapshot_;
  std::function<void(Outcome)> done_;
  Stage stage_ = Stage::kAllocatable;
  std::optional<MigDrain> drain_;
  Outcome outcome_ = Outcome::kDone;  // after apply
  std::optional<mig::State> expected_state_;
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
