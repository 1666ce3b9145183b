#include "nvml/errors.h"

namespace gpulet::nvml {

Code to_code(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_INVALID_ARGUMENT:
    case NVML_ERROR_INSUFFICIENT_SIZE: return Code::kInvalidArgument;
    case NVML_ERROR_NOT_SUPPORTED:
    case NVML_ERROR_FUNCTION_NOT_FOUND:
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
    case NVML_ERROR_DEPRECATED: return Code::kUnsupported;
    case NVML_ERROR_NO_PERMISSION: return Code::kPermissionDenied;
    case NVML_ERROR_NOT_FOUND: return Code::kNotFound;
    case NVML_ERROR_TIMEOUT: return Code::kDeadlineExceeded;
    case NVML_ERROR_GPU_IS_LOST:
    case NVML_ERROR_GPU_NOT_FOUND: return Code::kDeviceLost;
    case NVML_ERROR_RESET_REQUIRED:
    case NVML_ERROR_IN_USE:
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
    case NVML_ERROR_NOT_READY:
    case NVML_ERROR_INVALID_STATE: return Code::kFailedPrecondition;
    // The driver has gone, or another has come under the library: whoever asks must open anew.
    case NVML_ERROR_UNINITIALIZED:
    case NVML_ERROR_DRIVER_NOT_LOADED:
    case NVML_ERROR_LIBRARY_NOT_FOUND:
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return Code::kUnavailable;
    default: return Code::kIo;
  }
}

Status to_status(const Api& api, nvmlReturn_t result, const char* function) {
  if (result == NVML_SUCCESS) return {};
  const char* words = api.nvmlErrorString != nullptr ? api.nvmlErrorString(result) : nullptr;
  return fail(to_code(result), std::string(function) + ": " +
                                   (words != nullptr ? std::string(words) : "NVML error " + std::to_string(result)));
}

}  // namespace gpulet::nvml
