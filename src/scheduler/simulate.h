// Replays a trace through a policy, as "Beware of Fragmentation" (USENIX ATC 2023) does: tasks are drawn at
// random from the trace and submitted one by one, none leaves, a task that fits nowhere is dropped, until the
// GPUs asked for reach a multiple of the cluster's. What counts is the share of the cluster's GPUs that is
// allocated then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "scheduler/node_table.h"
#include "scheduler/policy.h"
#include "scheduler/trace.h"

namespace gpulet::scheduler {

struct RunOptions {
  std::string policy;
  std::uint64_t seed = 1;
  // When to stop: GPUs asked for, as a multiple of the cluster's.
  double target = 1.3;
  // Called now and then with demand so far over `target`, 0 to 1; may be empty.
  std::function<void(double)> progress;
};

// Shares of the cluster's GPUs.
struct Point {
  double demand = 0;
  double allocated = 0;
};

// One task's place.
struct Placed {
  std::uint32_t task = 0;  // in Trace::tasks
  std::uint32_t node = 0;  // in Trace::nodes
  GpuSet gpus = 0;
};

struct RunResult {
  std::string policy;
  std::uint64_t seed = 0;
  double allocated = 0;            // at the end
  double allocated_at_demand = 0;  // when the GPUs asked for were as many as there are
  std::size_t dropped = 0;
  std::vector<Placed> placed;  // in the order of time
  std::vector<Point> curve;    // every hundredth of demand, from 0 on
};

// The target mix is the trace's own tasks. Deterministic: the same trace and options give the same result.
// Errors: kInvalidArgument for an unknown policy, a target not above 0 or above kMaxTarget, a trace whose
// tasks ask for no GPU (it would never end).
inline constexpr double kMaxTarget = 10;
Result<RunResult> simulate(const Trace& trace, const RunOptions& options);

// What a policy's runs have in common: the mean, the least and the greatest of them.
struct Spread {
  double mean = 0;
  double least = 0;
  double greatest = 0;
};
struct Summary {
  std::string policy;
  std::size_t runs = 0;
  Spread allocated;  // at the end
  Spread allocated_at_demand;
  double placed = 0;   // mean
  double dropped = 0;  // mean
  struct Step {
    double demand = 0;
    Spread allocated;
  };
  std::vector<Step> curve;  // every hundredth of demand
};
// Precondition: at least one run, all of one policy and target.
Summary summarize(const std::vector<RunResult>& runs);

}  // namespace gpulet::scheduler
