// Stops the GPU operator's operands around a change of MIG, as NVIDIA's MIG manager does: each node label
// nvidia.com/gpu.deploy.NAME that is "true" becomes "paused-for-mig-change", so that the operator's DaemonSet
// leaves the node, and afterwards "true" again. It is the MigHooks of the MIG manager (mig_manager.h):
//
//     apply-start   state pending ─▶ labels paused ─▶ Pods gone ─▶ validation Pods deleted
//     apply-exit    CDI spec ─▶ operator-validator Pod deleted ─▶ labels "true"
//     round's end   state success or failed
//
// The labels themselves say what is to be put back, also after a restart in the middle. They are put back
// after every failure; then the operands stay for a while (kOperandRetry) before they are stopped again. A
// label that is absent, "false" or paused by somebody else is never touched. Loop's thread only.
// Source: mig-parted v0.15.0, pkg/mig/reconfigure/reconfigure.go; the operator's DaemonSets (app labels).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/mig/mig_ports.h"
#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"
#include "k8s/node_pods.h"

namespace gpulet::agent {

inline constexpr std::string_view kOperandDeployed = "true";
inline constexpr std::string_view kOperandPaused = "paused-for-mig-change";
// From the first pause until the last Pod is gone.
inline constexpr Duration kOperandPauseLimit = std::chrono::minutes(5);
// Between two lists: the operator's role grants no watch on pods.
inline constexpr Duration kOperandPoll = std::chrono::seconds(1);
// From a failed change until the operands are stopped for it again.
inline constexpr BackoffLimits kOperandRetry{std::chrono::minutes(1), std::chrono::minutes(30)};

struct OperandPorts {
  Loop& loop;
  k8s::NodePods& pods;
  std::string name_space;  // of the operands
  // As k8s::NodeLabelPatcher::set_label.
  std::function<void(const std::string& key, const std::string& value)> set_label;
  // Renews what depends on the MIG devices (device nodes, CDI spec), before the operands return.
  std::function<Status()> renew_specs;
};

class OperandPause final : public MigHooks {
 public:
  OperandPause(OperandPorts ports, std::uint64_t seed);

  // All labels of the node, at first and on every change.
  void set_labels(std::map<std::string, std::string> labels);
  // The result of a round: kMigSuccess, else it has failed. Publishes it once the operands are back.
  void end_round(std::string_view state);
  // No round will end: there is no layout to apply, or no driver. Puts back what an earlier process paused.
  void abandon_round();

  bool are_configured() const override { return true; }
  void run_hooks(mig::HookPoint point, const HookSubject& about, std::function<void(Status)> done) override;

 private:
  using Done = std::function<void(Status)>;
  void start_pause(const HookSubject& about, Done done);
  void check_labels();
  void list_operands();
  void on_operands(Result<std::vector<PodRef>> pods);
  void list_clients(std::vector<PodRef> pods);
  void end_pause(const Status& status);
  void delete_apps(const std::string& apps, Done done);
  void put_back(Done done);
  void put_labels_back();
  bool has_leftovers() const;
  std::vector<std::string> paused_labels() const;
  void publish_state(bool success);

  OperandPorts ports_;
  std::map<std::string, std::string> labels_;
  std::set<std::string> paused_;     // by this process
  std::set<std::string> returning_;  // set to "true", and not seen so yet
  bool is_idle_ = false;             // no round is in progress, and one has ended
  bool to_renew_ = false;            // MIG may have changed since the specs were renewed
  bool stopped_ = false;             // in this round the operands were stopped
  std::optional<Done> pausing_;      // until the Pods are gone
  bool listing_ = false;
  std::string waiting_for_;
  std::string layout_;
  Backoff backoff_;
  std::optional<Time> not_before_;
  Subscription deadline_, poll_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
