// The MIG manager's work as a part of the agent's loop: what a label or a rule wants each GPU to be is
// planned on paper, and carried out one GPU at a time while all others stay offered.
//
// Before a GPU is touched it is withdrawn, so that no Pod is given what is about to go; then the kubelet is
// asked who holds its devices, and the plan is made anew with them: an instance that a Pod or a process holds
// is never destroyed. A GPU that is blocked stays as it is and offered, and is tried again. Nothing is
// remembered over a restart: the plan is made from the hardware each time. Loop's thread only.
//
// One round goes over all GPUs (agent/mig_change.h is one of them). Around it an operator's hooks run:
// apply-start before the first GPU is touched, apply-exit at the end, whatever became of it, and again until
// it succeeds.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/mig_change.h"
#include "agent/mig_ports.h"
#include "base/backoff.h"
#include "base/loop.h"

namespace gpulet::agent {

// A GPU that is blocked, or whose step failed, is tried again within these.
inline constexpr BackoffLimits kMigBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};

class MigManager {
 public:
  MigManager(MigPorts ports, std::uint64_t seed);
  MigManager(const MigManager&) = delete;

  // What all GPUs shall be, and what is there. Called after every change of either; works only on what
  // differs.
  void update(std::vector<MigWish> wishes, const inventory::SnapshotPtr& snapshot);

  bool busy() const { return busy_; }

 private:
  void start_round();
  void read_next(std::size_t next);
  void judge_round();
  void judge(std::span<const std::pair<MigWish, mig::State>> alike);
  void next_job();
  void on_change(MigChange::Outcome outcome);
  void begin(std::function<void(Status)> done);
  void leave_round();
  void end_round();
  void report(Reporter::Severity severity, std::string_view reason, const std::string& message);

  MigPorts ports_;
  std::vector<MigWish> wishes_;
  inventory::SnapshotPtr snapshot_;
  std::string done_for_;  // what the last round was about: nothing is done twice for the same
  MigMemory memory_;
  MigRound round_;

  bool busy_ = false, again_ = false;
  std::vector<std::pair<MigWish, mig::State>> read_;
  std::deque<MigJob> jobs_;  // still to do
  std::unique_ptr<MigChange> change_;
  bool from_label_ = false, refused_ = false, failed_ = false, waiting_ = false;
  std::optional<Status> begun_;  // what apply-start came to in this round
  bool exit_owed_ = false;       // it ran, and apply-exit did not succeed since
  MigHooks::About about_;
  std::set<std::string> told_, telling_;
  Backoff backoff_;
  Subscription timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
