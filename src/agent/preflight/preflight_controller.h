// Checks GPUs by CUDA before they are offered: first after the node's boot, and before one that a fault
// withdrew returns. Off by default (gpulet.preflight).
//
//     due: withdraw ─▶ no Pod, no process ─▶ run `gpulet preflight` ─▶ evidence (health::ProbeReading) ─▶
//     offer
//
// Unknown is not broken: a GPU that is held, in MIG mode or cannot be checked is offered, and its health says
// that the check did not run. One that passed, or could not be checked, is not due again in this boot: the
// record of the boot survives the agent. A hang, or slow copies, count only once they are repeated while no
// other GPU is checked; copies with a peer only if they are slow or wrong with two peers, as the first may be
// at fault: of two GPUs, nothing is known by them. If all GPUs of a round hang, CUDA starts slowly: they are
// unknown. GPUs of one round are offered together, as each may be another one's peer. A change of MIG, a
// reset or the release of the driver ends the runs that are in its way; they begin again afterwards. A run
// that ended the agent is not repeated: it is recorded before it begins. Whether a GPU returns is up to its
// evidence (health/state/device_status.h). Loop's thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/health/health_controller.h"
#include "agent/node/ports.h"
#include "base/loop.h"
#include "health/evidence/evidence.h"
#include "health/report/node_health.h"
#include "inventory/snapshot.h"
#include "mig/device_holders.h"
#include "mig/hardware.h"
#include "preflight/checks.h"
#include "preflight/preflight_policy.h"

namespace gpulet::agent {

// Why the return of a GPU does not wait for a preflight.
inline constexpr const char* kNoReturn = "gpulet.preflight.when has no return";
// How often GPUs that cannot be checked now are looked at again, beside update_preflights().
inline constexpr Duration kPreflightPoll = std::chrono::seconds(1);

// How long GPUs wait for a kubelet that does not list its Pods: without it none is offered anyway.
inline constexpr Duration kPreflightPodsLimit = std::chrono::minutes(2);

// Evaluated again for each round.
struct PreflightNode {
  health::HealthViewPtr view;
  inventory::SnapshotPtr snapshot;
  preflight::Policy policy;
  std::string paused{};                       // what all GPUs wait for: "for the driver"; empty: nothing
  std::map<DeviceUuid, std::string> unfit{};  // cannot be checked, with the reason: MIG
  std::map<DeviceUuid, std::string> paused_gpus{};  // what each of these waits for
};

struct PreflightPorts {
  using Holders = std::map<DeviceUuid, std::vector<mig::DeviceHolder>>;
  Loop& loop;
  Reporter& reporter;
  // nullopt before the GPUs are known.
  std::function<std::optional<PreflightNode>()> read_node;
  // The Pods and claims that hold devices. An error: unknown, so nothing is checked.
  std::function<void(std::function<void(Result<mig::PodsByDevice>)>)> pods;
  // The processes with a context on these GPUs; monitors have none. An error: unknown.
  std::function<void(std::vector<DeviceUuid>, std::function<void(Result<Holders>)>)> processes;
  // gpus_before_offer() may differ: plan again.
  std::function<void()> replan;
  // One run of the program, within policy.timeout. `peers`: for Check::kPeerCopy.
  std::function<void(const DeviceUuid& gpu, std::vector<DeviceUuid> peers, const preflight::Policy& policy,
                     std::function<void(preflight::RunResult)> done)>
      run;
  // Kills the run on the GPU; its `done` may still come.
  std::function<void(const DeviceUuid&)> stop;
  std::function<void(const DeviceUuid&, const health::ProbeReading&)> submit;
  std::function<void(std::map<DeviceUuid, Preflights::OfGpu>)> show;
  // Does not block; the newest one wins. `done` (may be empty): it, or a newer one, is on the disk, or cannot
  // be written.
  std::function<void(const preflight::BootRecord&, std::function<void()> done)> save;
  std::string boot_id;  // of this boot; empty: not known
};

struct PreflightStatus {
  std::optional<Time> at{};  // nullopt: by an earlier agent
  preflight::Verdict verdict;
};

class PreflightController {
 public:
  // `record`: of an earlier agent, of this boot or another.
  PreflightController(PreflightPorts ports, preflight::BootRecord record);
  PreflightController(const PreflightController&) = delete;

  // After every change of what read_node() returns.
  void update_preflights();
  // The healthy GPUs of the snapshot that wait for their preflight, with the reason: before they are offered.
  std::map<DeviceUuid, std::string> gpus_before_offer(const inventory::Snapshot& snapshot,
                                                      const preflight::Policy& policy,
                                                      const std::map<DeviceUuid, std::string>& unfit) const;
  // The last result of each GPU in this boot.
  const std::map<DeviceUuid, PreflightStatus>& results() const { return results_; }
  // The record without the runs that end with this object.
  preflight::BootRecord record_at_end() const;

 private:
  enum class Step { kIdle, kSettle, kList, kRun };
  struct Run {
    std::uint64_t id = 0;  // an answer for another one is too late
    bool is_alone = false;
    std::vector<DeviceUuid> peers{};
    bool has_begun = false;  // it is recorded
  };

  void evaluate();
  void stop_hindered_runs();
  bool is_due_in_boot(const DeviceUuid& gpu, const preflight::Policy& policy) const;
  bool is_due(const inventory::Gpu& gpu);
  bool is_return_due(const DeviceUuid& gpu, const health::DeviceStatus& status);
  void remember_timer(Time at);
  void conclude_interrupted();
  void begin_round(std::vector<DeviceUuid> gpus);
  void on_pods(const Result<mig::PodsByDevice>& pods);
  void on_processes(const Result<PreflightPorts::Holders>& holders);
  void run_next();
  void start_run(const DeviceUuid& gpu, bool is_alone);
  void begin_run(const DeviceUuid& gpu, std::uint64_t id);
  bool have_all_hung() const;
  void excuse_hangs();
  std::optional<DeviceUuid> other_peer(const DeviceUuid& gpu) const;
  std::vector<DeviceUuid> peers_of(const DeviceUuid& gpu, bool is_alone) const;
  void on_run(const DeviceUuid& gpu, std::uint64_t id, const preflight::RunResult& run);
  bool is_withdrawn(const DeviceUuid& gpu) const;
  void conclude(const DeviceUuid& gpu, preflight::Verdict verdict);
  void conclude_unknown(const std::vector<DeviceUuid>& gpus, const std::string& why);
  void finish_round();
  void show_results();
  bool is_waiting(const DeviceUuid& gpu) const;

  PreflightPorts ports_;
  preflight::BootRecord record_;
  Step step_ = Step::kIdle;
  bool update_requested_ = false, is_saved_ = true;
  std::optional<PreflightNode> node_;       // of this round
  std::vector<DeviceUuid> round_;           // GPUs that nothing is known to hold
  std::deque<DeviceUuid> queue_, suspect_;  // first runs; second ones, one at a time
  std::map<DeviceUuid, Run> running_;
  std::set<DeviceUuid> hung_;                     // once, in this round
  std::set<DeviceUuid> faulty_;                   // concluded so in this round
  std::set<DeviceUuid> peer_suspects_;            // their copies with first_peers_ are slow or wrong
  std::map<DeviceUuid, DeviceUuid> first_peers_;  // in this round
  std::set<DeviceUuid> due_;
  std::set<DeviceUuid> checked_;               // by this agent
  std::set<DeviceUuid> interrupted_;           // a run of an earlier agent, which ended before it
  std::map<DeviceUuid, std::string> excused_;  // why they could not be checked: their return does not wait
  std::map<std::string, unsigned> tally_;      // results of this round
  std::uint64_t last_run_ = 0;
  std::map<DeviceUuid, PreflightStatus> results_;
  std::optional<Time> next_;                // when a GPU may be due again
  std::optional<Time> pods_unknown_since_;  // the kubelet does not list them
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
