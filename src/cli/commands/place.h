// `gpulet place`: which devices a container would get on this node now, with their score and the reason.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "config/load.h"
#include "inventory/snapshot.h"

namespace gpulet::cli {

struct PlaceOptions {
  std::size_t size = 0;
  // By index ("3", MIG devices "3:0"), UUID or device ID ("<uuid>::2"); empty `available`: all healthy ones.
  // An index or UUID means every share of that device in `available`, and its first free share in `require`.
  std::vector<std::string> available;
  std::vector<std::string> require;
  std::string policy;           // "best-effort", "tightest", "distributed", "packed"; empty: as configured
  std::string resource;         // "nvidia.com/gpu"; empty: the only one, or nvidia.com/gpu
  std::string output = "text";  // or "json"
  std::string driver_root = "/";
  config::Sources sources;  // settings that determine the resources; none: the defaults
};

// Pure. Errors: kInvalidArgument for an unknown name, resource or policy, and as placement::Chooser;
// kFailedPrecondition if the node has no allocatable device.
Result<std::string> place_report(const inventory::Snapshot& snapshot, const config::Config& config,
                                 const PlaceOptions& options);

// Reads the driver and prints the report. Exit code: 0; 1 after one line on standard error.
int run_place(const PlaceOptions& options);

}  // namespace gpulet::cli
