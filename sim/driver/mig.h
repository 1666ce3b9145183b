// From what a MIG operation said to NVML's codes and to what the driver shows of it.
#pragma once

#include <utility>

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

// Sleeps while the GPU's next change of MIG hangs. Returns the handle.
template <class Pointer>
Pointer after_mig_hang(Pointer handle) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  const auto decoded = decode(handle);
  if (state == nullptr || !decoded) return handle;
  while (true) {
    const std::uint32_t seen = state->changes();
    {
      const ReadGuard machine = state->read();
      if (decoded->gpu >= machine->gpu_count || machine->driver.loaded == 0) return handle;
      const Faults& faults = machine->gpus[decoded->gpu].faults;
      if (faults.mig_hang == 0 || faults.mig_skip != 0) return handle;
    }
    state->wait(seen, -1);
  }
}

// A call that changes MIG: it suffers the faults that only those have.
class MigEdit : public GpuEdit {
 public:
  template <class Pointer>
  explicit MigEdit(Pointer handle) : GpuEdit(after_mig_hang(handle)) {}

  template <class... Pointers>
  nvmlReturn_t refused(const Pointers*... results) const {
    if (const auto refused = GpuEdit::refused(results...)) return refused;
    Faults& faults = gpu().faults;
    if (faults.mig_error == 0 && faults.mig_hang == 0) return NVML_SUCCESS;
    if (faults.mig_skip != 0) {
      --faults.mig_skip;
      return NVML_SUCCESS;
    }
    return static_cast<nvmlReturn_t>(std::exchange(faults.mig_error, 0));
  }
};

// Brings /proc and /dev of the driver root in line with the GPU's instances, as the kernel module and
// nvidia-modprobe do.
inline nvmlReturn_t show_instances(const GpuEdit& call, nvmlReturn_t outcome) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (outcome == NVML_SUCCESS) sync_capabilities(root_of_state(state->path()), call.gpu());
  return outcome;
}

}  // namespace gpulet::sim
