// Edits of MIG: NVML result codes, injected faults, and the /proc and /dev entries of instances.
#pragma once

#include <utility>

#include "sim/driver/rights.h"
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

// Sleeps while the GPU's next MIG change hangs. Returns the handle.
template <class Pointer>
Pointer wait_out_mig_hang(Pointer handle) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  const auto decoded = decode_handle(handle);
  if (state == nullptr || !decoded) return handle;
  while (true) {
    const std::uint32_t seen = state->change_count();
    {
      const ReadGuard machine = state->lock_for_read();
      if (decoded->gpu >= machine->gpu_count || machine->driver.loaded == 0) return handle;
      const Faults& faults = machine->gpus[decoded->gpu].faults;
      if (faults.mig_hang == 0 || faults.mig_skip != 0) return handle;
    }
    state->wait_for_change(seen, -1);
  }
}

// A call that changes MIG, with the faults of such calls.
class MigEdit : public BasicGpuCall<Machine> {
 public:
  template <class Pointer>
  explicit MigEdit(Pointer handle) : BasicGpuCall(wait_out_mig_hang(handle)) {}

  template <class... Pointers>
  nvmlReturn_t entry_error(const Pointers*... results) const {
    if (const auto error = BasicGpuCall::entry_error(results...)) return error;
    if (!may_configure_mig()) return NVML_ERROR_NO_PERMISSION;
    Faults& faults = gpu_state().faults;
    if (faults.mig_error == 0 && faults.mig_hang == 0) return NVML_SUCCESS;
    if (faults.mig_skip != 0) {
      --faults.mig_skip;
      return NVML_SUCCESS;
    }
    return static_cast<nvmlReturn_t>(std::exchange(faults.mig_error, 0));
  }
};

// After a successful change, updates /proc and /dev of the driver root, as the kernel module and
// nvidia-modprobe do. Returns `outcome`.
inline nvmlReturn_t publish_instances(const BasicGpuCall<Machine>& call, nvmlReturn_t outcome) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (outcome == NVML_SUCCESS) sync_capabilities(driver_root_of_state(state->file_path()), call.gpu_state());
  return outcome;
}

}  // namespace gpulet::sim
