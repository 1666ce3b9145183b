// The driver's branch, from which on its answers differ: 615 of "615.78.08". Sources: NVML's change log
// (docs.nvidia.com/deploy/nvml-api, "Changes between NVML v610 and v615"), nvml.h 13.5.
#pragma once

namespace gpulet::sim {

struct Machine;

unsigned driver_branch(const Machine& machine);
inline constexpr unsigned kBranch580 = 580;
inline constexpr unsigned kBranch590 = 590;
inline constexpr unsigned kBranch615 = 615;

}  // namespace gpulet::sim
