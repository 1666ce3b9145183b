// The topology manager's decision for one container: which NUMA nodes its devices should come from, and whether it is
// admitted at all. Pure.
// Source: Kubernetes 1.36, pkg/kubelet/cm/topologymanager (policies, hint merging), devicemanager/topology_hints.go.
#pragma once

#include <optional>
#include <set>
#include <vector>

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

// More nodes with devices than this are not enumerated (the real one takes 8 by default).
inline constexpr std::size_t kMaxNumaNodes = 8;

NumaDecision decide(TopologyPolicy policy, const std::vector<NumaDemand>& demands);

}  // namespace gpulet::sim
