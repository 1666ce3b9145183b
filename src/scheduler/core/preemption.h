// Which Pods leave for a Pod of higher priority. kube-scheduler proposes victims by counts; here they become
// those whose devices the Pod can really use. Pure.
//
// Source: k8s.io/kube-scheduler/extender/v1, ExtenderPreemptionArgs; kube-scheduler's DefaultPreemption for
// the order among victims. The fewest violated PodDisruptionBudgets come first, then the lowest highest
// priority, then the lowest sum of priorities, which prefers fewer Pods; of equal Pods the younger ones
// leave.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "scheduler/core/cluster_state.h"
#include "scheduler/model/disruption_budget.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {

// By "namespace/name".
using DisruptionBudgets = std::map<std::string, DisruptionBudget>;

// A node, and the Pods on it that would leave.
struct NodeVictims {
  std::string node;
  std::vector<std::string> uids;
  std::int64_t budget_violations = 0;
  friend bool operator==(const NodeVictims&, const NodeVictims&) = default;
};

// How many sets of victims are tried for one request; beyond it the best of those stands, which
// is at least as good as that of kube-scheduler's greedy search.
inline constexpr std::size_t kMaxVictimSets = 20'000;

// The nodes of `proposed` on which the Pod fits once its victims have left, each with the victims that this
// needs, the highest priority first, as kube-scheduler expects. Where the proposal is as good as any other
// set it is returned unchanged.
//
// - Only Pods of a lower priority leave. Those that hold no device stay in the proposal as they are.
// - Other victims than the proposed ones free as much CPU and memory as the proposed ones, or as the Pod
//   requests. A Pod with needs that only kube-scheduler checks (NodeNeeds) keeps all proposed victims and
//   may get more.
// - Pods that are being deleted count as gone. Where that is enough, only such nodes are returned, so that
//   nothing else is evicted; none if no such Pod could be named as a victim.
// - Nobody is evicted for a Pod that fits on its nominated node or on one that was `answered` lately, now or
// once
//   those being deleted have left: Pods have left that node for it.
// - Where the priorities of all victims are known, only the best node is returned, one that was answered
// lately
//   before others: kube-scheduler may ask again before it knows what it has evicted itself.
// - A node without a GpuNode or without the requested resources keeps its proposal.
// - `budgets`: null if unknown. Then proposals are returned or dropped, never changed.
//
// Cost: some microseconds for each set of victims, at most kMaxVictimSets of them.
std::vector<NodeVictims> choose_victims(ClusterState& cluster, const PodRequest& request,
                                        std::span<const NodeVictims> proposed,
                                        const DisruptionBudgets* budgets,
                                        std::span<const NodeVictims> answered = {});

// Whether the Pod fits on a node that publishes its resources, once these Pods and those being deleted have
// left.
bool fits_without(ClusterState& cluster, const PodRequest& request, std::string_view node,
                  std::span<const std::string> uids);

// The victims of a Pod as answered lately. kube-scheduler asks again about a Pod as soon as it knows that its
// victims have left, which may be before this code does. One thread.
class RecentPreemptions {
 public:
  static constexpr Duration kRemembered = std::chrono::seconds(10);
  static constexpr std::size_t kMaxAnswers = 1024;

  // `uid`: of the Pod that others leave for. An empty answer changes nothing.
  void remember(const std::string& uid, std::vector<NodeVictims> chosen, Time now);
  // Empty if none. Valid until the next change.
  std::span<const NodeVictims> find_answer(const std::string& uid, Time now) const;

 private:
  struct Answer {
    Time at;
    std::vector<NodeVictims> chosen;
  };
  std::map<std::string, Answer> answers_;
};

}  // namespace gpulet::scheduler
