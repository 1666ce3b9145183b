// A machine for tests that need no YAML: `gpu_count` GPUs like H100 (MIG capable, all linked through one
// NVSwitch, in two NUMA nodes), driver 570.124.06.
#pragma once

#include <memory>

#include "sim/state/state.h"

namespace gpulet::sim {

std::unique_ptr<Machine> small_machine(std::uint32_t gpu_count);

}  // namespace gpulet::sim
