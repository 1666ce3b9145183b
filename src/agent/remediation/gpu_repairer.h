// Repairs GPUs as repair/repair_policy.h decides, one group at a time:
//
//     wait ─▶ no Pod, no process ─▶ withdraw ─▶ stop MPS daemons ─▶ no Pod, no process ─▶ record ─▶
//     decide again ─▶ nvidia-smi ─▶ readings ─▶ wait
//
// It never evicts: it waits until nothing holds the GPUs. Healthy GPUs that are reset with a faulty one are
// offered to nobody meanwhile. A reset is evidence (health::ResetDone); whether a GPU returns is up to its
// recovery (health/state/device_status.h). Where resets do not help, the reboot of the node is requested,
// never done. Attempts and a reset in progress are recorded before nvidia-smi starts; if they cannot be,
// there is no reset. A group that was withdrawn in vain is left alone for the cooldown. Loop's thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/mig/mig_change.h"
#include "agent/node/ports.h"
#include "base/loop.h"
#include "health/report/node_health.h"
#include "inventory/snapshot.h"
#include "mig/device_holders.h"
#include "mig/hardware.h"
#include "repair/repair_policy.h"
#include "repair/repair_record.h"

namespace gpulet::agent {

// How often holders are read while a GPU waits to be empty.
inline constexpr Duration kRepairPoll = std::chrono::seconds(5);

// How long a group may be withdrawn before nvidia-smi starts.
inline constexpr Duration kWithdrawnLimit = std::chrono::seconds(10);

// Evaluated again for each decision.
struct RepairNode {
  health::HealthViewPtr view;
  inventory::SnapshotPtr snapshot;
  repair::Policy policy;
  unsigned max_unhealthy_gpus_percent = 50;
  std::string busy;                               // RepairInputs::busy
  std::vector<DeviceUuid> unmanaged_instances{};  // RepairInputs::unmanaged_instances
};

struct GpuRepairPorts {
  using Holders = std::map<DeviceUuid, std::vector<mig::DeviceHolder>>;
  Loop& loop;
  Reporter& reporter;
  // nullopt before the GPUs are known.
  std::function<std::optional<RepairNode>()> read_node;
  // The Pods and claims that hold devices, from the kubelet. An error: unknown, so nothing is reset.
  std::function<void(std::function<void(Result<mig::PodsByDevice>)>)> pods;
  // The processes that use these GPUs. An error: unknown.
  std::function<void(std::vector<DeviceUuid>, std::function<void(Result<Holders>)>)> processes;
  // The GPUs that are offered to nobody, with the reason.
  std::function<void(std::map<DeviceUuid, std::string>)> withdraw;
  // Stops the MPS control daemons if one has one of these GPUs, then calls `done`; they start again with
  // resume_daemons(). An error: a container uses one.
  std::function<void(std::vector<DeviceUuid>, std::function<void(Status)> done)> pause_daemons;
  std::function<void()> resume_daemons;
  // As reset_gpus(), while the agent has no session. kFailedPrecondition and kDeadlineExceeded: nvidia-smi
  // has run; any other error: it has not, and the attempt does not count.
  std::function<void(std::vector<DeviceUuid>, Duration limit, std::function<void(Status)>)> reset;
  std::function<void(const DeviceUuid&)> submit_reset;  // health::ResetDone
  std::function<void()> request_snapshot;
  std::function<void(std::map<DeviceUuid, std::string>)> show_notes;  // DeviceView::repair
  // The request for a reboot, with the faults that ask for it, one line; nullopt: none.
  std::function<void(const repair::RebootRequestPolicy&, std::optional<std::string>)> request_reboot;
  // Does not block.
  std::function<void(const repair::Record&, std::function<void(Status)>)> save;
  std::string boot_id;  // of this boot
};

struct RepairCounts {
  std::uint64_t done = 0, failed = 0, dry_run = 0;  // resets, by GPU
  bool is_reboot_requested = false;
};

class GpuRepairer {
 public:
  // `record`: of an earlier agent. A reset that it had not finished is reported; if it began in this boot,
  // its GPUs stay withdrawn until `reset_timeout` after its start, as nvidia-smi may still run.
  GpuRepairer(GpuRepairPorts ports, repair::Record record, Duration reset_timeout);
  GpuRepairer(const GpuRepairer&) = delete;

  // After every change of what read_node() returns.
  void update_repairs();
  // nvidia-smi runs, or may still run since an earlier agent started it.
  bool is_resetting() const { return step_ == Step::kReset || step_ == Step::kInterrupted; }
  const repair::Record& record() const { return record_; }
  const RepairCounts& counts() const { return counts_; }

 private:
  enum class Step { kIdle, kInterrupted, kCheck, kWithdrawn, kReset, kVerify };
  using Decision = repair::RepairDecision;

  // No group of this GPU is withdrawn before then.
  struct Hold {
    Time until{};
    std::string why;
  };

  void await_interrupted_reset(Duration reset_timeout);
  void end_interrupted_reset();
  void evaluate();
  std::vector<Decision> decide(const RepairNode& node, const repair::Record& record) const;
  bool note_hold(const DeviceUuid& gpu);
  void update_reboot_request(const std::vector<Decision>& decisions, const repair::Policy& policy);
  void note_decision(const Decision& decision);
  void list_holding_pods();
  void on_pods(const Result<mig::PodsByDevice>& pods);
  void check_next();
  void read_processes(bool with_daemons, std::function<void(std::string blocker)> done);
  std::string pod_blocker(const Decision& decision) const;
  void report_dry_run(const Decision& decision);
  void withdraw_group();
  void resume_late_daemons();
  void check_again(const Result<mig::PodsByDevice>& pods);
  void record_attempt();
  void undo_attempt();
  void on_recorded();
  std::string change_since(const RepairNode& node) const;
  void run_reset();
  void on_reset(const Status& status);
  void on_verified();
  void hold_group(const std::string& why);
  void return_group();
  void finish_repair_round();
  void save_record();
  std::string group_text() const;
  std::string name_of(const DeviceUuid& gpu) const;

  GpuRepairPorts ports_;
  repair::Record record_;
  RepairCounts counts_;
  Step step_ = Step::kIdle;
  bool update_requested_ = false;
  std::optional<RepairNode> node_;  // of this round
  std::vector<Decision> decisions_;
  std::deque<Decision> candidates_;  // of this round; the first is being checked or reset
  mig::PodsByDevice pods_;           // of this round
  std::map<DeviceUuid, std::string> notes_;
  std::set<std::string> reported_;  // dry runs and the end of attempts, once each while they last
  std::set<std::string> reporting_;
  std::map<DeviceUuid, Hold> holds_;
  std::uint64_t generation_ = 0;          // of the last snapshot when the reset ended
  std::uint64_t round_ = 0;               // an answer for an earlier one is too late
  std::string awaited_;                   // while withdrawn: "the record is not written yet"
  std::optional<repair::Record> before_;  // without the attempt that has not begun yet
  Subscription timer_, limit_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
