// The interface of all placement policies: how good a node is for a task, and with which GPUs. Pure: the
// same node and task give the same result. docs/scheduling.md has each policy's formula and when to use it.
//
// A policy has two steps, so that 5,000 nodes cost little: what depends on free shares, CPU and links
// (`placement_options`, cached by NodeTable per kind of node and class of task), and what depends on load,
// which differs from node to node and takes a few additions (`load_weight`).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/model/node_state.h"

namespace gpulet::scheduler {

// One way to place a task on a node: any `count` of `gpus` are equally good but for their load.
struct Option {
  double score = 0;
  GpuSet gpus = 0;
  std::uint16_t count = 0;
};

// The chosen placement: `gpus` are exactly the task's number of GPUs.
struct Choice {
  double score = 0;  // higher is better; comparable between nodes for one policy and one task
  GpuSet gpus = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view policy_name() const = 0;

  // Fills `options` (cleared first) with the ways to place `task` on `node`, ignoring load; none if it does
  // not fit. At most one for each distinct free share. May cache between calls: one thread per object.
  virtual void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) = 0;

  // Weight of one unit of gpu_load_cost against the options' scores; 0: load is ignored.
  virtual double load_weight() const { return 0; }
  // Whether it picks randomly among the GPUs of an option instead of the first.
  virtual bool draws_gpus() const { return false; }
};

// Both steps: how good `node` is for `task`, and on which GPUs: the best option with the node's load added,
// ties to the lower GPU. Nullopt if it does not fit. Cost: microseconds; use NodeTable for many nodes.
std::optional<Choice> choose_placement(Policy& policy, const NodeState& node, const Task& task);

// The contention that a task adds to GPU `gpu`: the growth of a steep convex function of utilization (1 at
// 100 %), averaged over the day, plus a cost for missing memory. ≥ 0. For several GPUs use the mean.
double gpu_load_cost(const NodeState& node, const LoadCurve& task_load, unsigned gpu);
// The cost of a busy machine, whichever of its GPUs are free: the mean of its GPUs' peaks, 0 to 1, times a
// small factor. Tasks share its CPUs, memory, network and power.
double node_load_cost(const NodeState& node);

// The second step alone, for callers that cache the first: a task's load curve and its cost on an idle GPU …
struct TaskLoad {
  explicit TaskLoad(const Task& task);
  LoadCurve curve;
  double on_idle = 0;
};
// … and the node's node_load_cost.
std::optional<Choice> best_choice(const Policy& policy, const NodeState& node, double machine,
                                  const TaskLoad& load, std::span<const Option> options);

// What a policy may need to know about the cluster.
struct PolicyContext {
  Workload workload = Workload::typical();
};

// "binpack", "spread", "topology", "fragmentation", "load", "default": those that a Pod may name.
std::vector<std::string> policy_names();
// Those, "random", and published names: "bestfit" for binpack, "fgd" for fragmentation.
std::vector<std::string> simulator_policy_names();

// Errors: kInvalidArgument with the name, the nearest known one and all known ones.
Result<std::shared_ptr<Policy>> make_policy(std::string_view name, const PolicyContext& context);
// The same, including simulator-only policies.
Result<std::shared_ptr<Policy>> make_simulator_policy(std::string_view name, const PolicyContext& context);

}  // namespace gpulet::scheduler
