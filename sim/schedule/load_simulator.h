// Simulates weeks of load on shared GPUs: how policies handle services that are busy at different hours.
// Everything comes from a seed, so policies see the same tasks with the same curves.
//
// The workload (details in docs/scheduling.md): services of 1 to 6 replicas on shares of a GPU, each with
// its own daily pattern (peak at 2, 9 or 17 h UTC, ± 2 hours), quieter weekends, and a use that differs from
// its share; each replica is placed again every few days. Batch jobs of some hours run in between. Policies
// see what an extender sees: shares, and each GPU's forecast, learnt from measured use and published every
// half hour.
//
// With rebalancing, batch jobs have a lower priority than services. A moved task is down for five minutes, is
// placed again by the policy, and runs for the rest of its time: a batch job resumes from its checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"

namespace gpulet::scheduler {

struct LoadRunOptions {
  std::string policy;
  std::uint64_t seed = 1;
  unsigned nodes = 64;  // 1 to kMaxLoadNodes
  unsigned gpus = 8;    // per node
  unsigned days = 28;   // 2 to kMaxLoadDays
  // Whether a service's next replica is expected to repeat the load of its last one (Task::load); else its
  // share, flat.
  bool known_services = false;
  // Whether Pods are asked to leave hot GPUs, by the agents' rule (scheduler/load/rebalance.h) and defaults.
  bool rebalance = false;
  std::function<void(double)> progress;  // 0 to 1, once per simulated day; may be empty
};
inline constexpr unsigned kMaxLoadNodes = 2000;
inline constexpr unsigned kMaxLoadDays = 366;

// Measured from the second day on, when every hour has been seen once. Shares are of GPU time (GPUs × steps
// of 5 minutes).
struct LoadRunResult {
  std::string policy;
  std::uint64_t seed = 0;
  double above_95 = 0;   // share of GPU time above 95 % use
  double hottest = 0;    // the same for the hottest GPU
  double unserved = 0;   // demand beyond a GPU's capacity, as a share of all demand
  double mean_busy = 0;  // mean use
  double allocated = 0;  // mean of the allocated shares
  std::size_t placements = 0;
  std::size_t refused = 0;  // tasks that fitted nowhere
  std::size_t moves = 0;    // of rebalancing
  double restarting = 0;    // demand of moved tasks while they restart, as a share of all demand
};

// Deterministic. Errors: kInvalidArgument for an unknown policy or a number out of range.
Result<LoadRunResult> simulate_load(const LoadRunOptions& options);

}  // namespace gpulet::scheduler
