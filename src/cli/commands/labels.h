// `gpulet labels`: the labels of this node by what its driver reports now, and the reason for each. Needs no
// agent and no cluster.
#pragma once

#include <string>

#include "base/result.h"
#include "config/load.h"
#include "labels/labels.h"

namespace gpulet::cli {

struct LabelsOptions {
  bool explain = false;
  std::string output = "text";  // "text" or "json"
  std::string driver_root = "/";
  config::Sources sources;  // the agent's settings, which determine how GPUs are advertised
};

// "key=value" lines; with `explain`, below each its rule, source and subject, and the value before it was
// truncated or cleaned. Pure. Errors: kInvalidArgument for an unknown output.
Result<std::string> labels_report(const labels::Labels& labels, bool explain, const std::string& output);

// Exit code: 0, also for a node without GPUs; 1 after one line on standard error if there is no driver or the
// settings are invalid.
int run_labels(LabelsOptions options);

}  // namespace gpulet::cli
