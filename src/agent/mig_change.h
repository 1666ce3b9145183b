// One GPU made as its wish says, from the first look to the agent's own reading of what was made:
//
//   look ─▶ withdraw ─▶ look ─▶ hooks ─▶ look ─▶ apply ─▶ shown ─▶ offered again
//
// Each look plans anew with who holds what by then. What blocks ends it and leaves the GPU as it is, but for
// two things: Pods, where they shall be evicted (agent/mig_drain.h), and processes, where there are hooks
// that may stop them. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "agent/mig_drain.h"
#include "agent/mig_ports.h"
#include "base/backoff.h"
#include "base/loop.h"

namespace gpulet::agent {

// From withdrawing a GPU until the kubelet is asked who holds it: an Allocate that was answered before is
// recorded by then. Source: the kubelet notes a Pod's devices right after Allocate's answer.
inline constexpr Duration kMigSettle = std::chrono::milliseconds(250);
// How long a changed GPU stays withdrawn for a reading that shows what was made, at most.
inline constexpr Duration kMigShown = std::chrono::seconds(5);

// What is remembered of the GPUs' changes for as long as the wishes are the same.
struct MigMemory {
  // Hooks ran, and processes were in the way all the same: they are not run again for these.
  std::set<DeviceUuid> hooks_in_vain;
  struct Drain {
    Backoff backoff;
    Time not_before;
  };
  std::map<DeviceUuid, Drain> drains;  // that came to nothing
};

// What the changes of one round share.
struct MigRound {
  const MigPorts& ports;
  MigMemory& memory;
  std::uint64_t seed;
  MigDrain::Report report;  // says the same thing once
  // Before the first GPU is touched; an error: none may be, and it was told.
  std::function<void(std::function<void(Status)>)> begin;
  std::function<bool()> given_up;  // the wishes are others by now
};

struct MigJob {
  MigWish wish;
  mig::Layout layout;
  // Its turn came before, and Pods are in the way: those whose GPUs are free went first.
  bool may_drain = false;
};

class MigChange {
 public:
  enum class Outcome { kDone, kWaiting, kFailed, kDrainLater };

  // `done` comes from the loop, once, and may destroy this. `round` lives longer.
  MigChange(const MigRound& round, MigJob job, inventory::SnapshotPtr snapshot,
            std::function<void(Outcome)> done);
  MigChange(const MigChange&) = delete;

  void start() { look(); }
  void on_snapshot(const inventory::SnapshotPtr& snapshot);

 private:
  enum class Stage { kOffered, kWithdrawn, kHooked };

  void look();
  void on_pods(Result<mig::Pods> pods);
  void on_state(const mig::Pods& pods, Result<mig::State> state);
  void on_blocked(const mig::Plan& plan, const mig::Pods& pods, const mig::State& state);
  void drain(const mig::Plan& plan, const std::vector<std::string>& pods);
  void go_on(const mig::Plan& plan, const mig::State& state);
  void touch(bool with_hooks);
  void withdraw();
  void run_hooks(bool mode, bool instances);
  void on_hook(const Status& status, bool more);
  void apply(const mig::Plan& plan);
  void on_applied(const mig::Plan& plan, const Result<MigApplied>& applied);
  void await_shown();
  bool shown() const;
  bool hooked() const;
  bool drains(const mig::Plan& plan) const;
  void end(Outcome outcome);

  const MigRound& round_;
  const MigPorts& ports_;
  const MigJob job_;
  inventory::SnapshotPtr snapshot_;
  std::function<void(Outcome)> done_;
  Stage stage_ = Stage::kOffered;
  std::optional<MigDrain> drain_;
  Outcome outcome_ = Outcome::kDone;  // once something was applied
  std::optional<mig::State> wanted_shown_;
  Subscription timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
