// Replays weeks of load on shared GPUs: what a policy makes of services that are busy at different hours.
// Everything of it comes from a seed, so that two policies see the same tasks with the same curves.
//
// The workload (docs/scheduling.md has it in words): services of 1 to 6 replicas on shares of a GPU, each
// with a day of its own (peak at 2, 9 or 17 h UTC, give or take), quieter weekends, and a use that its share
// says little about; each replica is placed anew every few days. Between them batch jobs of some hours.
// Placement sees what an extender would: shares, and each GPU's forecast, learnt from its measured use alone
// and published every half an hour.
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
  unsigned gpus = 8;    // of each
  unsigned days = 28;   // 2 to kMaxLoadDays
  // Whether a service's next replica is expected to do what its last did (Task::load); else its share, flat.
  bool known_services = false;
  std::function<void(double)> progress;  // 0 to 1, once a simulated day; may be empty
};
inline constexpr unsigned kMaxLoadNodes = 2000;
inline constexpr unsigned kMaxLoadDays = 366;

// Measured from the second day on, when every hour has been seen once. Shares are of GPU time (GPUs × steps
// of 5 minutes).
struct LoadRunResult {
  std::string policy;
  std::uint64_t seed = 0;
  double above_95 = 0;   // share of GPU time at more than 95 % use
  double hottest = 0;    // the same of the GPU that has most of it
  double unserved = 0;   // what was wanted of a GPU beyond all that it has, of all that was wanted
  double mean_busy = 0;  // mean use
  double allocated = 0;  // mean of the shares held
  std::size_t placements = 0;
  std::size_t refused = 0;  // tasks that fitted nowhere
};

// Deterministic. Errors: kInvalidArgument for an unknown policy and a number out of range.
Result<LoadRunResult> simulate_load(const LoadRunOptions& options);

}  // namespace gpulet::scheduler
