// The one interface of everything that says where a task should go: how good a node is for it, and with which
// GPUs. Pure: the same node and task give the same answer. docs/scheduling.md has each policy's formula and
// when to use it.
//
// A policy splits its judgement in two, so that 5,000 nodes cost little: what depends on free shares, CPU and
// links
// (`options`, remembered by NodeTable for each kind of node and class of task), and what depends on load,
// which differs from node to node and is a few additions (`load_weight`).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/node_state.h"
#include "scheduler/task.h"
#include "scheduler/workload.h"

namespace gpulet::scheduler {

// One way to place a task on a node: any `take` of `gpus` are as good as any other, but for their load.
struct Option {
  double score = 0;
  GpuSet gpus = 0;
  std::uint16_t take = 0;
};

// Where it went: `gpus` are exactly the task's number of GPUs.
struct Choice {
  double score =
      0;  // higher is better; comparable between nodes for one policy and one task, in no unit of its own
  GpuSet gpus = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;

  // Every way worth a look to place `task` on `node`, without regard to load, into `options` (cleared first);
  // none where it does not fit. At most one for each distinct free share. May remember between calls: one
  // thread for each object.
  virtual void options(const NodeState& node, const Task& task, std::vector<Option>& options) = 0;

  // What one unit of load_cost weighs against the options' scores; 0: load plays no part.
  virtual double load_weight() const { return 0; }
  // Whether it draws among the GPUs of an option instead of taking the first.
  virtual bool draws_gpus() const { return false; }
};

// Both steps: how good `node` is for `task`, and on which GPUs: the best of its options with the node's load
// added, ties to the lower GPU. Nullopt where it does not fit. Cost: microseconds for the policies that look
// ahead; NodeTable is for many nodes.
std::optional<Choice> choose(Policy& policy, const NodeState& node, const Task& task);

// What a task adds to the expected trouble of GPU `gpu`: the mean over the day of the growth of a steeply
// convex function of its utilisation (1 at 100 %), and of what its memory would be short of. ≥ 0. Several
// GPUs of a task: the mean.
double load_cost(const NodeState& node, const LoadCurve& task_load, unsigned gpu);
// The same for a machine whose GPUs are busy, whichever of them are free: the mean of its GPUs' peaks, 0 to
// 1, times a small factor. Neighbours share its processors, memory, network and power.
double machine_cost(const NodeState& node);

// The second step alone, for who remembers the rest: what a task does to a GPU that nothing is expected of …
struct TaskLoad {
  explicit TaskLoad(const Task& task);
  LoadCurve curve;
  double on_idle = 0;
};
// … and machine_cost of the node.
std::optional<Choice> best_choice(const Policy& policy, const NodeState& node, double machine,
                                  const TaskLoad& load, std::span<const Option> options);

// What a policy may need to know of the cluster.
struct PolicyContext {
  Workload workload = Workload::typical();
};

// "binpack", "spread", "topology", "fragmentation", "load", "default": those that a Pod may name.
std::vector<std::string> policy_names();
// Those, "random", and the published name of a policy where it has one: "bestfit" for binpack, "fgd" for
// fragmentation.
std::vector<std::string> simulator_policy_names();

// Errors: kInvalidArgument, naming what was found, the nearest there is and all that are accepted.
Result<std::shared_ptr<Policy>> policy_named(std::string_view name, const PolicyContext& context);
// The same with what only a simulator may use.
Result<std::shared_ptr<Policy>> simulator_policy_named(std::string_view name, const PolicyContext& context);

}  // namespace gpulet::scheduler
