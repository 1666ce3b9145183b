#include "sim/control/answers.h"

#include <algorithm>

#include "sim/control/control.h"

namespace gpulet::sim::control {

Status set_answer(const StateFile& state, const std::string& call, std::optional<std::uint32_t> gpu,
                  std::uint32_t nvml_return) {
  const EditGuard machine = state.lock_for_edit();
  if (gpu && *gpu >= machine->gpu_count) return fail(Code::kNotFound, "no GPU " + std::to_string(*gpu));
  Answer wanted{};
  if (call.empty() || call.size() >= sizeof wanted.call)
    return fail(Code::kInvalidArgument, "not the name of an NVML function", call);
  call.copy(wanted.call, sizeof wanted.call - 1);
  wanted.gpu = gpu.value_or(kMaxGpus);
  wanted.nvml_return = nvml_return;
  auto* const end = machine->answers + machine->answer_count;
  auto* found = std::find_if(machine->answers, end, [&](const Answer& answer) {
    return answer.gpu == wanted.gpu && std::string_view(answer.call) == call;
  });
  if (nvml_return == 0) {
    if (found == end) return {};
    *found = *(end - 1);
    --machine->answer_count;
    return {};
  }
  if (found == end && machine->answer_count == kMaxAnswers)
    return fail(Code::kInvalidArgument,
                "there are " + std::to_string(kMaxAnswers) + " answers already, the maximum");
  if (found == end) ++machine->answer_count;
  *found = wanted;
  return {};
}

void clear_answers(Machine& machine, std::optional<std::uint32_t> gpu) {
  auto* const end = std::remove_if(machine.answers, machine.answers + machine.answer_count,
                                   [&](const Answer& answer) { return !gpu || answer.gpu == *gpu; });
  machine.answer_count = static_cast<std::uint32_t>(end - machine.answers);
}

Status set_reset_fault(const StateFile& state, std::uint32_t gpu, const ResetFault& fault) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    one.faults.reset_error = fault.nvml_return;
    one.faults.reset_hang = fault.hangs ? 1 : 0;
    one.faults.reset_ms = fault.milliseconds;
    return {};
  });
}

Status set_cuda_fault(const StateFile& state, std::uint32_t gpu, CudaFault fault, std::uint32_t number) {
  return edit_gpu(state, gpu, [&](Machine&, Gpu& one) -> Status {
    switch (fault) {
      case CudaFault::kBadMemory:
        one.faults.bad_memory = 1;
        return {};
      case CudaFault::kWrongResult:
        one.faults.wrong_results = 1;
        return {};
      case CudaFault::kHang:
        one.faults.cuda_hang = 1;
        return {};
      case CudaFault::kSlowCopies:
        if (number == 0 || number > 100)
          return fail(Code::kInvalidArgument, "expected a percentage, 1 to 100", std::to_string(number));
        one.faults.copy_percent = number;
        return {};
      case CudaFault::kLaunchError:
        if (number == 0 || number > 999)
          return fail(Code::kInvalidArgument, "expected a CUresult, 1 to 999", std::to_string(number));
        one.faults.launch_error = number;
        return {};
    }
    return {};
  });
}

}  // namespace gpulet::sim::control
