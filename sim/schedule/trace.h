// Cluster traces as CSV: nodes, and the tasks submitted to them. The columns are those of Alibaba's
// cluster-trace-gpu-v2023, in any order; others are ignored.
//   nodes  sn, cpu_milli, memory_mib, gpu (how many), model
//   pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each, 1 to 1000; 0 with num_gpu 0),
//          gpu_spec ("A|B"; optional: any model)
// trace_simulator.cpp replays a trace through a scheduling policy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/core/node_table.h"
#include "scheduler/core/policy.h"
#include "scheduler/model/node_state.h"

namespace gpulet::scheduler {

struct ClusterTrace {
  Models models;
  std::vector<NodeState> nodes;
  std::vector<Task> tasks;

  std::int64_t total_gpu_milli() const;  // of all nodes
};

// `about_nodes` and `about_pods` name the files in errors. Errors: kInvalidArgument, one line with file, row
// (the header is row 1), field, what was found and what is expected: a missing column, a row of another
// length, an invalid number, no row.
Result<ClusterTrace> read_trace(std::string_view nodes_csv, std::string_view about_nodes,
                                std::string_view pods_csv, std::string_view about_pods);

// One row per line, split at commas; a field may be in double quotes. Rows are numbered from 1.
struct CsvRow {
  std::size_t number = 0;
  std::vector<std::string> fields;
};
// Empty lines are skipped. Errors: kInvalidArgument for an unterminated quote, with its row.
Result<std::vector<CsvRow>> parse_csv(std::string_view text, std::string_view about);

// Replays a trace through a policy, as "Beware of Fragmentation" (USENIX ATC 2023) does: tasks are drawn at
// random from the trace and submitted one by one; none leaves; a task that fits nowhere is dropped. The run
// stops when the requested GPUs reach a multiple of the cluster's. The result is the share of the cluster's
// GPUs that is allocated then.

struct TraceRunOptions {
  std::string policy;
  std::uint64_t seed = 1;
  // Stop when the requested GPUs reach this multiple of the cluster's.
  double target = 1.3;
  // Called now and then with the progress, 0 to 1; may be empty.
  std::function<void(double)> progress;
};

// Shares of the cluster's GPUs.
struct CurvePoint {
  double demand = 0;
  double allocated = 0;
};

// Where one task was placed.
struct PlacedTask {
  std::uint32_t task = 0;  // in ClusterTrace::tasks
  std::uint32_t node = 0;  // in ClusterTrace::nodes
  GpuSet gpus = 0;
};

struct TraceRunResult {
  std::string policy;
  std::uint64_t seed = 0;
  double allocated = 0;            // at the end
  double allocated_at_demand = 0;  // when the requested GPUs equal the cluster's
  std::size_t dropped = 0;
  std::vector<PlacedTask> placed;  // in order of time
  std::vector<CurvePoint> curve;   // every hundredth of demand, from 0 on
};

// The target mix is the trace's own tasks. Deterministic. Errors: kInvalidArgument for an unknown policy, a
// target that is not above 0 or is above kMaxTarget, and a trace without GPU tasks (it would never end).
inline constexpr double kMaxTarget = 10;
Result<TraceRunResult> replay_trace(const ClusterTrace& trace, const TraceRunOptions& options);

// Mean, least and greatest over a policy's runs.
struct Spread {
  double mean = 0;
  double least = 0;
  double greatest = 0;
};
struct PolicySummary {
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
PolicySummary summarize_runs(const std::vector<TraceRunResult>& runs);

// Plots allocation against demand as SVG, which needs no library.

// Draws two panels: the whole run, and its end, where policies differ, enlarged. A line for each policy's
// mean, a band from the least to the greatest of its seeds, and a legend with the final figures, best first.
// `title` is any text. Cost: a few KiB per policy. Precondition: at least one summary.
std::string draw_allocation_plot(std::string_view title, const std::vector<PolicySummary>& summaries);

}  // namespace gpulet::scheduler
