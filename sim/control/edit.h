// How control edits a GPU. Only sim/control includes this file.
#pragma once

#include <string>

#include "sim/control/control.h"

namespace gpulet::sim::control {

// nvmlDeviceGpuRecoveryAction_t.
inline constexpr std::uint32_t kNone = 0;
inline constexpr std::uint32_t kResetGpu = 1;
inline constexpr std::uint32_t kRebootNode = 2;
inline constexpr std::uint32_t kDrainAndReset = 4;

// Runs `change(machine, gpu)` under the lock, on a GPU that is there.
template <class Change>
Status edit_gpu(const StateFile& state, std::uint32_t gpu, Change change) {
  const EditGuard machine = state.edit();
  if (gpu >= machine->gpu_count) {
    return fail(Code::kNotFound,
                "no GPU " + std::to_string(gpu) + ": 0 to " + std::to_string(machine->gpu_count - 1));
  }
  return change(*machine, machine->gpus[gpu]);
}

// The greater action stays. Posts the event.
void raise_recovery_action(Machine& machine, std::uint32_t gpu, std::uint32_t action);

}  // namespace gpulet::sim::control
