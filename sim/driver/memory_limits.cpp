// Limits of GPU memory by cgroup: nvmlDeviceSetMemoryLimits_v1 and nvmlDeviceGetMemoryLimits_v1. A driver
// before branch 615 lacks them; here, they exist and say so.
#include "sim/driver/memory_limits.h"

#include <cstdlib>

#include "sim/driver/rights.h"

using namespace gpulet::sim;

namespace {

static_assert(kUnlimitedMemory == NVML_DEVICE_MEMORY_LIMIT_MAX);

nvmlReturn_t nvml_result(LimitOutcome outcome) {
  switch (outcome) {
    case LimitOutcome::kOk:
      return NVML_SUCCESS;
    case LimitOutcome::kNotSupported:
      return NVML_ERROR_NOT_SUPPORTED;
    case LimitOutcome::kNotFound:
      return NVML_ERROR_NOT_FOUND;
    case LimitOutcome::kInvalidArgument:
      return NVML_ERROR_INVALID_ARGUMENT;
    case LimitOutcome::kTableFull:
      return NVML_ERROR_INSUFFICIENT_RESOURCES;
  }
  return NVML_ERROR_UNKNOWN;
}

// Before the call has the machine's lock.
template <class Limits>
CgroupPath find_named_cgroup(const Limits* limits) {
  if (limits == nullptr || limits->nameSpace == nullptr) return {};
  return look_up_cgroup(limits->nameSpace);
}

// What both functions refuse alike.
template <class Call, class Limits>
nvmlReturn_t check_call(const Call& call, const Limits* limits) {
  if (const auto error = call.entry_error()) return error;
  if (driver_branch(call.machine()) < kBranch615) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (limits == nullptr || limits->nameSpace == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const bool is_off = memory_backend(call.machine()) == MemoryBackend::kOff;
  return is_off || call.is_mig() || call.gpu_state().mig.current != 0 ? NVML_ERROR_NOT_SUPPORTED
                                                                      : NVML_SUCCESS;
}

nvmlReturn_t check_cgroup(const CgroupPath& cgroup) {
  if (cgroup.is_version_1) return NVML_ERROR_NOT_SUPPORTED;
  return cgroup.exists && !cgroup.chain.empty() ? NVML_SUCCESS : NVML_ERROR_OPERATING_SYSTEM;
}

}  // namespace

CgroupPath gpulet::sim::cgroup_path_of_caller() {
  const char* named = std::getenv("GPULET_SIM_CGROUP");
  return named != nullptr ? look_up_cgroup(named) : look_up_cgroup_of_process("self");
}

std::optional<Cgroup> gpulet::sim::cgroup_of_caller() {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (state == nullptr || !has_memory_limits(*state->lock_for_read())) return std::nullopt;
  const CgroupPath own = cgroup_path_of_caller();
  return own.chain.empty() ? std::nullopt : std::optional(own.chain.front());
}

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, nvmlSetMemoryLimits_v1_t* limits) {
  const CgroupPath cgroup = find_named_cgroup(limits);
  // No GpuEdit, whose check of rights comes before everything that a driver without the function says.
  const BasicGpuCall<Machine> call(device, Accepts::kGpuOrMig);
  if (const auto error = check_call(call, limits)) return error;
  if (!is_administrator()) return NVML_ERROR_NO_PERMISSION;
  if (!cgroup.exists && !cgroup.chain.empty())
    remove_cgroup_limits(call.machine(), cgroup.chain.front().name);
  if (const auto error = check_cgroup(cgroup)) return error;
  return nvml_result(set_memory_limit(call.machine(), call.gpu_index(), cgroup.chain.front(),
                                      limits->softLimit, limits->hardLimit));
}

nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t* limits) {
  const CgroupPath cgroup = find_named_cgroup(limits);
  const BasicGpuCall<Machine> call(device, Accepts::kGpuOrMig);
  if (const auto error = check_call(call, limits)) return error;
  if (!cgroup.exists && !cgroup.chain.empty())
    remove_cgroup_limits(call.machine(), cgroup.chain.front().name);
  if (const auto error = check_cgroup(cgroup)) return error;
  MemoryLimitReading reading;
  const LimitOutcome outcome =
      read_memory_limit(call.machine(), call.gpu_index(), cgroup.chain.front(), reading);
  if (outcome != LimitOutcome::kOk) return nvml_result(outcome);
  limits->softLimit = reading.soft;
  limits->hardLimit = reading.hard;
  limits->currentUsed = reading.used;
  return NVML_SUCCESS;
}
