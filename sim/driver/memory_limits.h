// What limits of GPU memory by cgroup mean for the process that calls the driver.
#pragma once

#include <optional>

#include "sim/driver/call.h"
#include "sim/state/memory_limits.h"

namespace gpulet::sim {

// The cgroup of this process: GPULET_SIM_CGROUP, a directory that stands for it, else its own; none while the
// machine has no limit. Takes the machine's lock; blocks for a few file operations.
std::optional<Cgroup> cgroup_of_caller();
// The cgroup with its ancestors, also without limits. Blocks likewise.
CgroupPath cgroup_path_of_caller();

// The limit on the cgroup itself, which is the GPU's memory for its processes; none of an ancestor, nor
// without a cgroup.
inline std::optional<MemoryLimitReading> limit_seen_by(const GpuCall& call,
                                                       const std::optional<Cgroup>& cgroup) {
  if (!cgroup || call.is_mig()) return std::nullopt;
  return find_memory_limit(call.machine(), call.gpu_index(), *cgroup);
}

}  // namespace gpulet::sim
