// `gpulet topo`: how the node's GPUs are linked, as `nvidia-smi topo -m` shows it, and the scores that placement adds
// up. Needs no agent.
#pragma once

#include <string>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

struct TopoOptions {
  std::string output = "table";  // or "json"
  std::string driver_root = "/";
};

// What is printed, with a newline at its end. Pure. Errors: kInvalidArgument for another output.
Result<std::string> topo_report(const inventory::Snapshot& snapshot, const std::string& output);

// Exit code: 0; 1 with one line on standard error when there is no driver; 2 for another output.
int topo(const TopoOptions& options);

}  // namespace gpulet::cli
