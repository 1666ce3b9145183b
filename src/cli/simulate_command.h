// `gpulet scheduler simulate`: what policies make of a cluster's tasks, by the same code that scores Pods
// (src/scheduler). docs/scheduling.md.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::cli {

struct SimulateOptions {
  // CSV files, as scheduler/trace.h reads them. Not with `load`.
  std::string nodes;
  std::string pods;
  std::vector<std::string> policies;  // or "all"; empty: default, with `load` spread, load and default
  std::uint64_t seed = 1;             // of the first run
  std::uint64_t seeds = 1;            // how many runs of each policy
  double target = 1.3;                // GPUs asked for at the end, of the cluster's
  std::string plot;                   // an SVG file to write; empty: none
  std::string output = "table";       // or "json"

  // Weeks of daily load in place of a trace, as scheduler/simulate_load.h describes them.
  bool load = false;
  bool known_services = false;
  unsigned machines = 64;
  unsigned days = 28;
};

// `progress` is told one line at a time, each in place of the last; an empty one ends it.
using SimulateProgress = std::function<void(const std::string&)>;

// What is printed, with a newline at its end; writes the plot. The same files and options give the same
// bytes. Errors: kInvalidArgument for an unknown policy, a number out of range and as read_trace says; those
// of the files.
Result<std::string> simulate_report(const SimulateOptions& options, const SimulateProgress& progress);

// Prints it; progress goes to standard error where that is a terminal. Exit code: 0; 1 with one line on
// standard error.
int simulate(const SimulateOptions& options);

}  // namespace gpulet::cli
