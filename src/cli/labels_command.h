// `gpulet labels`: which labels this node has, as the driver says it now, and why. Needs no agent and no
// cluster.
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
  config::Sources sources;  // the agent's settings, which decide how GPUs are offered
};

// What is printed, with a newline at its end: "key=value" lines; with `explain`, below each its rule, whom it
// speaks of, where it comes from, and what it was before it was cut or cleaned. Pure. Errors:
// kInvalidArgument for another output.
Result<std::string> labels_report(const labels::Labels& labels, bool explain, const std::string& output);

// Exit code: 0, also for a node without GPUs; 1 with one line on standard error when there is no driver or
// the settings are wrong.
int labels(LabelsOptions options);

}  // namespace gpulet::cli
