// `gpulet-sim schedule`: replays a cluster's tasks through scheduling policies and reports what each
// allocates, by the same code that scores Pods (src/scheduler). docs/scheduling.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arguments/output.h"
#include "base/result.h"

namespace gpulet::sim {

struct ScheduleOptions {
  // CSV files, as sim/schedule/trace.h reads them. Not with `load`.
  std::string nodes;
  std::string pods;
  std::vector<std::string> policies;  // or "all"; empty: default, with `load` spread, load and default
  std::uint64_t seed = 1;             // of the first run
  std::uint64_t seeds = 1;            // runs of each policy
  double target = 1.3;                // requested GPUs at the end, as a multiple of the cluster's
  std::string plot;                   // SVG file to write; empty: none
  arguments::OutputOptions output;

  // Weeks of daily load instead of a trace, see sim/schedule/load_simulator.h.
  bool load = false;
  bool known_services = false;
  bool rebalance = false;  // each policy also with rebalancing
  unsigned machines = 64;
  unsigned days = 28;
};

// Gets one line at a time, which replaces the previous one; an empty line at the end.
using ScheduleProgress = std::function<void(const std::string&)>;

// The report, with a newline at its end; writes the plot. The same files and options give the same bytes.
// Errors: kInvalidArgument for an unknown policy, a number out of range, or as read_trace; those of the
// files.
Result<std::string> schedule_report(const ScheduleOptions& options, const ScheduleProgress& progress);

// Prints the report, and the progress to standard error if that is a terminal.
Status run_schedule(const ScheduleOptions& options);

}  // namespace gpulet::sim
