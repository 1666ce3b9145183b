// The topology manager's decision for one container: the NUMA nodes of its devices, and whether it is
// admitted; and the checkpoint of what was allocated. Pure. Source: Kubernetes 1.36,
// pkg/kubelet/cm/topologymanager (policies, hint merging), devicemanager/topology_hints.go.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/kubelet/kubelet.h"

namespace gpulet::sim {

// One resource of the container: the NUMA nodes of each device (none: unknown).
struct NumaDemand {
  std::vector<std::set<int>> all;        // every device of the resource
  std::vector<std::set<int>> available;  // healthy and free
  std::size_t request = 0;
};

struct NumaDecision {
  bool admit = true;
  std::optional<std::set<int>> affinity;  // none: no preference
};

// More nodes with devices than this are not enumerated (the real default is 8).
inline constexpr std::size_t kMaxNumaNodes = 8;

NumaDecision decide_numa_affinity(TopologyPolicy policy, const std::vector<NumaDemand>& demands);

// kubelet_internal_checkpoint: the device manager's state across restarts, in the real format but for the
// checksum (see kubelet.h).

// Devices of one resource that a container uses.
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
// Errors: kInvalidArgument for an invalid checkpoint or checksum.
Result<Checkpoint> read_checkpoint(const std::string& text);

}  // namespace gpulet::sim
