// The driver's memory limits by cgroup (sim/state/memory_limits.h), for simulated processes: what a load
// charges, and the setting of the driver.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/state/state.h"

namespace gpulet::sim::control {

// How a process gets its memory. All but the first are known ways past the driver's accounting. Source:
// open-gpu-kernel-modules 615.71.09, read; not run.
enum class Allocation {
  kOrdinary,
  kTinyObjects,  // the requested bytes are charged, not the page of each object: a sixteenth
  kDeadCreator,  // of a client whose creator has ended: nothing is charged, as for the next two
  kManaged,      // unified memory
  kRenderNode,   // buffer objects of /dev/dri/renderD*
};

// The registry key RmMemacctMode. `misreported_mib`: what NVML reads back as every hard limit; 0: the limit.
Status set_memory_accounting(const StateFile& state, MemoryBackend mode, std::uint64_t misreported_mib = 0);

// The cgroup and its ancestors: of `directory`; if that is empty, of the process `pid`, none of 0 or a
// process without one. kNotFound if the directory is no cgroup v2.
Result<std::vector<Cgroup>> find_load_cgroup(const std::string& directory, std::uint32_t pid);
// The part of `bytes` that the driver charges.
std::uint64_t charged_bytes(Allocation allocation, std::uint64_t bytes);

}  // namespace gpulet::sim::control
