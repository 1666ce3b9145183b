// Cluster traces as CSV: nodes, and the tasks submitted to them. The columns are those of Alibaba's
// cluster-trace-gpu-v2023, in any order; others are ignored.
//   nodes  sn, cpu_milli, memory_mib, gpu (how many), model
//   pods   name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each, 1 to 1000; 0 with num_gpu 0),
//          gpu_spec ("A|B"; optional: any model)
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
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

}  // namespace gpulet::scheduler
