// Traces of a cluster as CSV: its nodes, and the tasks that were asked of it. The columns are those of
// Alibaba's cluster-trace-gpu-v2023; others may stand beside them, in any order.
//   nodes  sn, cpu_milli, memory_mib, gpu (how many), model
//   pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each, 1 to 1000; 0 with num_gpu 0), gpu_spec
//   ("A|B"; may be
//          left out: any model)
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/node_state.h"
#include "scheduler/task.h"

namespace gpulet::scheduler {

struct Trace {
  Models models;
  std::vector<NodeState> nodes;
  std::vector<Task> tasks;

  std::int64_t gpu_milli() const;  // of all nodes
};

// `about_nodes` and `about_pods` name the files in errors.
// Errors: kInvalidArgument, one line with file, row (the header is row 1), field, what was found and what
// would do: a missing column, a row of another length, a number that is none or out of range, no row at all.
Result<Trace> read_trace(std::string_view nodes_csv, std::string_view about_nodes, std::string_view pods_csv,
                         std::string_view about_pods);

// One per line, split at commas; a field may stand in double quotes. Rows by number, from 1.
struct CsvRow {
  std::size_t number = 0;
  std::vector<std::string> fields;
};
// Empty lines are passed over. Errors: kInvalidArgument for a quote that does not end, with its row.
Result<std::vector<CsvRow>> parse_csv(std::string_view text, std::string_view about);

}  // namespace gpulet::scheduler
