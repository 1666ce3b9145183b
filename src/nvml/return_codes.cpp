#include "nvml/return_codes.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "nvml/library.h"

namespace gpulet::nvml {
namespace {

constexpr ReturnCode kReturnCodes[] = {
    {NVML_ERROR_UNINITIALIZED, "UNINITIALIZED", Meaning::kDriverGone, Code::kUnavailable},
    {NVML_ERROR_INVALID_ARGUMENT, "INVALID_ARGUMENT", Meaning::kNoSuchValue, Code::kInvalidArgument},
    {NVML_ERROR_NOT_SUPPORTED, "NOT_SUPPORTED", Meaning::kNoSuchValue, Code::kUnsupported},
    {NVML_ERROR_NO_PERMISSION, "NO_PERMISSION", Meaning::kNeedsRight, Code::kPermissionDenied},
    {NVML_ERROR_ALREADY_INITIALIZED, "ALREADY_INITIALIZED", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_NOT_FOUND, "NOT_FOUND", Meaning::kNoSuchValue, Code::kNotFound},
    {NVML_ERROR_INSUFFICIENT_SIZE, "INSUFFICIENT_SIZE", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_INSUFFICIENT_POWER, "INSUFFICIENT_POWER", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED", Meaning::kDriverGone, Code::kUnavailable},
    {NVML_ERROR_TIMEOUT, "TIMEOUT", Meaning::kNoValueNow, Code::kDeadlineExceeded},
    {NVML_ERROR_IRQ_ISSUE, "IRQ_ISSUE", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "LIBRARY_NOT_FOUND", Meaning::kDriverGone, Code::kUnavailable},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "FUNCTION_NOT_FOUND", Meaning::kNoSuchValue, Code::kUnsupported},
    {NVML_ERROR_CORRUPTED_INFOROM, "CORRUPTED_INFOROM", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_GPU_IS_LOST, "GPU_IS_LOST", Meaning::kLost, Code::kDeviceLost},
    {NVML_ERROR_RESET_REQUIRED, "RESET_REQUIRED", Meaning::kNeedsReset, Code::kResetRequired},
    {NVML_ERROR_OPERATING_SYSTEM, "OPERATING_SYSTEM", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "LIB_RM_VERSION_MISMATCH", Meaning::kDriverGone, Code::kUnavailable},
    {NVML_ERROR_IN_USE, "IN_USE", Meaning::kNoValueNow, Code::kFailedPrecondition},
    {NVML_ERROR_MEMORY, "MEMORY", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_NO_DATA, "NO_DATA", Meaning::kNoValueNow, Code::kIo},
    {NVML_ERROR_VGPU_ECC_NOT_SUPPORTED, "VGPU_ECC_NOT_SUPPORTED", Meaning::kNoSuchValue, Code::kUnsupported},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "INSUFFICIENT_RESOURCES", Meaning::kNoValueNow,
     Code::kFailedPrecondition},
    {NVML_ERROR_FREQ_NOT_SUPPORTED, "FREQ_NOT_SUPPORTED", Meaning::kNoSuchValue, Code::kUnsupported},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "ARGUMENT_VERSION_MISMATCH", Meaning::kNoSuchValue,
     Code::kUnsupported},
    {NVML_ERROR_DEPRECATED, "DEPRECATED", Meaning::kNoSuchValue, Code::kUnsupported},
    {NVML_ERROR_NOT_READY, "NOT_READY", Meaning::kNoValueNow, Code::kFailedPrecondition},
    {NVML_ERROR_GPU_NOT_FOUND, "GPU_NOT_FOUND", Meaning::kNoSuchValue, Code::kNotFound},
    {NVML_ERROR_INVALID_STATE, "INVALID_STATE", Meaning::kNoValueNow, Code::kFailedPrecondition},
    {NVML_ERROR_RESET_TYPE_NOT_SUPPORTED, "RESET_TYPE_NOT_SUPPORTED", Meaning::kNoSuchValue,
     Code::kUnsupported},
    {NVML_ERROR_UNKNOWN, "UNKNOWN", Meaning::kNoValueNow, Code::kIo},
};
static_assert(std::ranges::is_sorted(kReturnCodes, {}, &ReturnCode::nvml_return));

struct Counts {
  std::mutex mutex;
  std::map<std::pair<const char*, int>, std::uint64_t> counts;
};
// Never destroyed: a call may still be in the driver when the process ends.
Counts& all_counts() {
  static auto* const counts = new Counts;
  return *counts;
}

std::string code_text(int nvml_return) {
  if (nvml_return == NVML_SUCCESS) return "SUCCESS";
  const auto& row = find_return_code(nvml_return);
  return row.nvml_return == nvml_return ? std::string(row.name) : std::to_string(nvml_return);
}

}  // namespace

std::span<const std::string_view> called_functions() {
#define GPULET_NVML_NAME(function, older) #function,
  static constexpr std::string_view kNames[] = {GPULET_NVML_FUNCTIONS(GPULET_NVML_NAME)};
#undef GPULET_NVML_NAME
  return kNames;
}

std::span<const ReturnCode> return_codes() { return kReturnCodes; }

const ReturnCode& find_return_code(int nvml_return) {
  const auto* found = std::ranges::find(kReturnCodes, nvml_return, &ReturnCode::nvml_return);
  return found == std::end(kReturnCodes) ? *std::prev(found) : *found;
}

Meaning meaning_of(const Error& error) {
  const auto* found = std::ranges::find(kReturnCodes, error.code(), &ReturnCode::code);
  return found == std::end(kReturnCodes) ? Meaning::kNoValueNow : found->meaning;
}

bool is_device_fault(const Error& error) {
  return error.code() == Code::kDeviceLost || error.code() == Code::kResetRequired;
}

bool is_gone(const Error& error) {
  return error.code() == Code::kNotFound || error.code() == Code::kInvalidArgument;
}

std::string_view needed_right(std::string_view function) {
  const auto contains = [&](std::string_view part) { return function.find(part) != std::string_view::npos; };
  if (contains("Create") || contains("Destroy") || contains("GpuInstances") || contains("GpuInstanceById") ||
      contains("ComputeInstances") || contains("ComputeInstanceById") || contains("RemainingCapacity"))
    return "CAP_SYS_ADMIN or the MIG config right (NVIDIA_MIG_CONFIG_DEVICES)";
  if (function.starts_with("nvmlDeviceSet") || function.starts_with("nvmlDeviceReset"))
    return "CAP_SYS_ADMIN";
  return "CAP_SYS_ADMIN or the MIG monitor right (NVIDIA_MIG_MONITOR_DEVICES)";
}

void count_call(const char* function, int nvml_return) {
  auto& all = all_counts();
  const std::lock_guard lock(all.mutex);
  ++all.counts[{function, nvml_return}];
}

std::vector<CallCount> call_counts() {
  auto& all = all_counts();
  // The same name may be at two addresses.
  std::map<std::pair<std::string, std::string>, std::uint64_t> sums;
  {
    const std::lock_guard lock(all.mutex);
    for (const auto& [key, count] : all.counts) sums[{key.first, code_text(key.second)}] += count;
  }
  std::vector<CallCount> counts;
  for (const auto& [key, count] : sums) counts.push_back({key.first, key.second, count});
  return counts;
}

}  // namespace gpulet::nvml
