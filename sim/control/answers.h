// Return codes that single functions of the simulated driver have been given: `gpulet-sim answer`.
//
// They come before everything that the machine's state says, except a driver that is away. Tests use them to
// show what a node does when one call of a real driver fails in a way that the simulator does not imitate.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/state/state.h"

namespace gpulet::sim::control {

// A function of the C ABI returns this nvmlReturn_t instead of its result: on one GPU, or on every GPU and
// for calls about none. `call`: "nvmlDeviceGetMemoryInfo_v2", or kAnyOptionalCall. 0 ends that.
// kInvalidArgument for more than kMaxAnswers, or for a name that is too long.
Status set_answer(const StateFile& state, const std::string& call, std::optional<std::uint32_t> gpu,
                  std::uint32_t nvml_return);
// Ends the answers of one GPU, or all. Precondition: the machine is locked for editing.
void clear_answers(Machine& machine, std::optional<std::uint32_t> gpu);

// Of the resets of a GPU by nvidia-smi: they return this nvmlReturn_t, hang until healed, take this long.
struct ResetFault {
  std::uint32_t nvml_return = 0;
  bool hangs = false;
  std::uint32_t milliseconds = 0;
};
// Replaces an earlier one.
Status set_reset_fault(const StateFile& state, std::uint32_t gpu, const ResetFault& fault);

// What CUDA programs find on a GPU: each of these until it is healed.
enum class CudaFault { kBadMemory, kWrongResult, kSlowCopies, kLaunchError, kHang };
// `number`: the percentage of the links' speed for kSlowCopies (1 to 100), the CUresult for kLaunchError.
// kInvalidArgument for others.
Status set_cuda_fault(const StateFile& state, std::uint32_t gpu, CudaFault fault, std::uint32_t number = 0);

}  // namespace gpulet::sim::control
