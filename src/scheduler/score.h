// How good each node is for a Pod, in extender v1's range: the policies of policy.h over what the agents
// publish. Pure.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/cluster_view.h"
#include "scheduler/policy.h"

namespace gpulet::scheduler {

// Source: extender v1, MaxExtenderPriority.
inline constexpr int kMaxScore = 10;

// As kube-scheduler itself, which looks no further once it has found so many nodes that will do.
// Source: kube-scheduler, minFeasibleNodesToFind.
inline constexpr std::size_t kNodesToScore = 100;

// What a Pod is to a policy on this node: whole GPUs, or a part of one. nullopt where the node publishes
// nothing of what it asks for.
std::optional<Task> task_on(const NodeView& node, const PodRequest& request);

// The places of the `most` best scores, in the order of the places; of equal ones the first. All of them
// where there are no more.
std::vector<std::size_t> best_of(std::span<const int> scores, std::size_t most);

class Scorer {
 public:
  explicit Scorer(PolicyContext context = {}) : context_(std::move(context)) {}

  // Of each node, 0 to kMaxScore: a node of which nothing is known has 0, of the others the worst has 1 and
  // the best kMaxScore; equally good ones all have that. `policy` must be one of policy_names(); any other
  // counts as "default". Cost: ~200 ns a node.
  std::vector<int> score(ClusterView& view, const PodRequest& request, std::string_view policy,
                         std::span<const std::string_view> nodes);
  // The policy's own number, higher is better; nullopt where it has none.
  std::optional<Choice> judge(ClusterView& view, const PodRequest& request, std::string_view policy,
                              const NodeView& node);

 private:
  const std::shared_ptr<Policy>& policy_of(std::string_view name);

  PolicyContext context_;
  std::map<std::string, std::shared_ptr<Policy>, std::less<>> policies_;
};

}  // namespace gpulet::scheduler
