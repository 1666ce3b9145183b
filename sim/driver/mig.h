// From what a MIG operation said to NVML's codes and to what the driver shows of it.
#pragma once

#include "sim/driver/call.h"
#include "sim/state/capabilities.h"
#include "sim/state/mig.h"

namespace gpulet::sim {

inline nvmlReturn_t to_nvml(MigOutcome outcome) {
  switch (outcome) {
    case MigOutcome::kOk:
      return NVML_SUCCESS;
    case MigOutcome::kNotSupported:
      return NVML_ERROR_NOT_SUPPORTED;
    case MigOutcome::kInvalidArgument:
      return NVML_ERROR_INVALID_ARGUMENT;
    case MigOutcome::kInsufficientResources:
      return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case MigOutcome::kInUse:
      return NVML_ERROR_IN_USE;
    case MigOutcome::kResetRequired:
      return NVML_ERROR_RESET_REQUIRED;
    case MigOutcome::kNotFound:
      return NVML_ERROR_NOT_FOUND;
  }
  return NVML_ERROR_UNKNOWN;
}

// Brings /proc and /dev of the driver root in line with the GPU's instances, as the kernel module and
// nvidia-modprobe do.
inline nvmlReturn_t show_instances(const GpuEdit& call, nvmlReturn_t outcome) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (outcome == NVML_SUCCESS) sync_capabilities(root_of_state(state->path()), call.gpu());
  return outcome;
}

}  // namespace gpulet::sim
