// `gpulet place`: which devices a container would get on this node now, with their score and why.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "config/load.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

struct PlaceOptions {
  std::size_t size = 0;
  // By index ("3", MIG devices "3:0"), UUID or device ID ("<uuid>::2"); empty `available`: all healthy ones. An index
  // or a UUID stands for every share of that device in `available`, and for its first free one in `require`.
  std::vector<std::string> available;
  std::vector<std::string> require;
  std::string policy;          // "best-effort", "tightest", "distributed", "packed"; empty: as the config has it
  std::string resource;        // "nvidia.com/gpu"; empty: the only one, or nvidia.com/gpu
  std::string output = "text";  // or "json"
  std::string driver_root = "/";
  config::Sources sources;     // settings that decide which resources there are; none: the defaults
};

// What is printed, with a newline at its end. Pure.
// Errors: kInvalidArgument for a name, a resource or a policy that there is not, and as placement::Chooser::choose;
// kFailedPrecondition where the node has nothing to offer.
Result<std::string> place_report(const inventory::Snapshot& snapshot, const config::Config& config,
                                 const PlaceOptions& options);

// Reads the node, then prints. Exit code: 0; 1 with one line on standard error.
int place(const PlaceOptions& options);

}  // namespace gpulet::cli
