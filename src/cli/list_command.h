// `gpulet list`: the node's GPUs, as the driver says them now. Needs no agent.
#pragma once

#include <string>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

struct ListOptions {
  std::string output = "table";  // "table", "wide", "json", "yaml"
  std::string driver_root = "/";
};

// What is printed, with a newline at its end: MIG devices below their GPU, what could not be read at the end. Pure.
// Errors: kInvalidArgument for another output.
Result<std::string> list_report(const inventory::Snapshot& snapshot, const std::string& output);

// Exit code: 0; 1 with one line on standard error when there is no driver; 2 for another output.
int list(const ListOptions& options);

}  // namespace gpulet::cli
