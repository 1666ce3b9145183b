// `gpulet list`: the node's GPUs and MIG devices. `gpulet topo`: their links, as `nvidia-smi topo -m` shows
// them, and the scores that placement adds up. Both read the driver and need no agent.
#pragma once

#include <string>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

struct ListOptions {
  std::string output = "table";  // "table", "wide", "json", "yaml"
  std::string driver_root = "/";
};

// MIG devices follow their GPU, errors of unreadable GPUs come last. Pure. Errors: kInvalidArgument for an
// unknown output.
Result<std::string> list_report(const inventory::Snapshot& snapshot, const std::string& output);

// Exit code: 0; 1 after one line on standard error if there is no driver; 2 for an unknown output.
int run_list(const ListOptions& options);

struct TopoOptions {
  std::string output = "table";  // or "json"
  std::string driver_root = "/";
};

// Pure. Errors: kInvalidArgument for an unknown output.
Result<std::string> topo_report(const inventory::Snapshot& snapshot, const std::string& output);

// As run_list().
int run_topo(const TopoOptions& options);

}  // namespace gpulet::cli
