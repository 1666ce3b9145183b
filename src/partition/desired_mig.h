// What MIG should be on each GPU, as gpulet.partition's rules say. Values only: how to get there is mig/'s.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition {

struct DesiredMig {
  unsigned index = 0;  // of the GPU, as NVML counts
  DeviceUuid uuid;
  bool enabled = false;  // false: the rule wants it whole, time-sliced or with MPS
  // Where enabled, exactly one of the two: the name of a layout, or counts by profile.
  std::string layout;
  std::map<std::string, unsigned> devices;
  std::string place;  // of the rule: "file:line:column"
  friend bool operator==(const DesiredMig&, const DesiredMig&) = default;
};

// By index: every MIG-capable GPU with a UUID that a rule selects. A GPU that no rule selects is nobody's
// business here.
std::vector<DesiredMig> desired_mig(const inventory::Snapshot& snapshot, const config::Config& config,
                                    const std::map<std::string, std::string>& labels);

}  // namespace gpulet::partition
