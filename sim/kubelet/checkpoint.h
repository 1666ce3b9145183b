// kubelet_internal_checkpoint: the device manager's memory across restarts, in the real one's JSON. Only the checksum
// differs (see kubelet.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::sim {

// What one container holds of one resource.
struct CheckpointEntry {
  std::string pod_uid, container, resource;
  std::map<std::int64_t, std::vector<std::string>> devices;  // by NUMA node; -1: unknown
  std::string allocate_response;                             // v1beta1.ContainerAllocateResponse, serialized
  friend bool operator==(const CheckpointEntry&, const CheckpointEntry&) = default;
};

struct Checkpoint {
  std::vector<CheckpointEntry> entries;
  std::map<std::string, std::vector<std::string>> registered;  // healthy devices by resource
  friend bool operator==(const Checkpoint&, const Checkpoint&) = default;
};

std::string write_checkpoint(const Checkpoint& checkpoint);
// Errors: kInvalidArgument for what is no checkpoint or fails its checksum.
Result<Checkpoint> read_checkpoint(const std::string& text);

}  // namespace gpulet::sim
