// The MIG manager's work as a part of the agent's loop: what a label or a rule wants each GPU to be is
// planned on paper, and carried out one GPU at a time while all others stay offered.
//
// Before a GPU is touched it is withdrawn, so that no Pod is given what is about to go; then the kubelet is
// asked who holds its devices, and the plan is made anew with them: an instance that a Pod or a process holds
// is never destroyed. A GPU that is blocked stays as it is and offered, and is tried again. Nothing is
// remembered over a restart: the plan is made from the hardware each time. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/ports.h"
#include "base/backoff.h"
#include "base/loop.h"
#include "mig/layout.h"
#include "mig/plan.h"
#include "mig/state.h"

namespace gpulet::agent {

// A GPU that is blocked, or whose step failed, is tried again within these.
inline constexpr BackoffLimits kMigBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};
// From withdrawing a GPU until the kubelet is asked who holds it: an Allocate that was answered before is
// recorded by then. Source: the kubelet notes a Pod's devices right after Allocate's answer.
inline constexpr Duration kMigSettle = std::chrono::milliseconds(250);
// How long a changed GPU stays withdrawn for a reading that shows what was made, at most.
inline constexpr Duration kMigShown = std::chrono::seconds(5);

// What one GPU shall be.
struct MigWish {
  DeviceUuid gpu;
  std::string layout;  // a name of the layout file, or a derived one; empty where `exact` says it
  std::optional<mig::Layout> exact;
  std::string source;  // who says so: "the label nvidia.com/mig.config=all-1g.10gb", "node.yaml:7:5"
  bool from_label = false;
  friend bool operator==(const MigWish&, const MigWish&) = default;
};

// What became of a plan.
struct MigApplied {
  bool needs_reset = false;  // the mode is set and only the GPU's next reset brings it into force
};

// The hardware as the manager needs it (agent/nvml_mig.h; another in tests). No member blocks; `done` comes
// on the loop, once, and never from inside the call.
class MigHardware {
 public:
  virtual ~MigHardware() = default;
  virtual void read(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) = 0;
  // Errors: why it failed, in one line that says what stands now; nothing in use was destroyed.
  virtual void apply(const DeviceUuid& gpu, const mig::Plan& plan,
                     std::function<void(Result<MigApplied>)> done) = 0;
};

// Values of the label nvidia.com/mig.config.state.
inline constexpr std::string_view kMigPending = "pending", kMigSuccess = "success", kMigFailed = "failed";

struct MigPorts {
  Loop& loop;
  MigHardware& hardware;
  Reporter& reporter;
  // Who holds which device now, from the kubelet. An error: nobody knows, so nothing is touched.
  std::function<void(std::function<void(Result<std::map<DeviceId, std::string>>)>)> pods;
  // The layouts that `name` stands for on these GPUs; nullopt for one that stays as it is.
  std::function<Result<std::vector<std::optional<mig::Layout>>>(const std::string& name,
                                                                std::span<const mig::State> gpus)>
      layouts;
  // The GPUs that are being changed now, each with why; the plan leaves them out.
  std::function<void(std::map<DeviceUuid, std::string>)> withdraw;
  std::function<void()> read_again;                  // of the agent's snapshot
  std::function<void(std::string_view)> tell_state;  // for wishes from the label
};

class MigManager {
 public:
  MigManager(MigPorts ports, std::uint64_t seed);
  MigManager(const MigManager&) = delete;

  // What all GPUs shall be, and what is there. Called after every change of either; works only on what
  // differs.
  void update(std::vector<MigWish> wishes, const inventory::SnapshotPtr& snapshot);

  bool busy() const { return busy_; }

 private:
  struct Job {
    MigWish wish;
    mig::Layout layout;
  };
  using Holders = std::map<DeviceId, std::string>;

  void start_round();
  void read_next(std::size_t next);
  void judge_round();
  void judge(std::span<const std::pair<MigWish, mig::State>> alike);
  void next_job();
  void look(bool withdrawn);
  void on_holders(bool withdrawn, Result<Holders> holders);
  void on_state(bool withdrawn, const Holders& holders, Result<mig::State> state);
  void apply(const mig::Plan& plan);
  void on_applied(const mig::Plan& plan, const Result<MigApplied>& applied);
  void await_shown();
  void end_job();
  void end_round();
  void report(Reporter::Severity severity, std::string_view reason, const std::string& message);
  bool shown() const;

  MigPorts ports_;
  std::vector<MigWish> wishes_;
  inventory::SnapshotPtr snapshot_;
  std::string done_for_;  // what the last round was about: nothing is done twice for the same

  bool busy_ = false, again_ = false;
  std::vector<std::pair<MigWish, mig::State>> read_;
  std::vector<Job> jobs_;  // still to do, the first under way
  bool from_label_ = false, refused_ = false, failed_ = false, waiting_ = false;
  std::set<std::string> told_, telling_;
  std::optional<mig::State> wanted_shown_;
  Backoff backoff_;
  Subscription timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace gpulet::agent
