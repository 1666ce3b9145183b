// nvmlReturn_t as Status. Only nvml/ includes this file.
#pragma once

#include <string>

#include "base/result.h"
#include "nvml/api.h"

namespace gpulet::nvml {

// The code that an nvmlReturn_t stands for (never called with NVML_SUCCESS).
Code to_code(nvmlReturn_t result);

// "nvmlDeviceGetName: GPU is lost".
Status to_status(const Api& api, nvmlReturn_t result, const char* function);

template <class Function, class... Arguments>
Status call(const Api& api, Function function, const char* name, Arguments... arguments) {
  if (function == nullptr) return fail(Code::kUnsupported, std::string(name) + ": this driver has no such function");
  return to_status(api, function(arguments...), name);
}

}  // namespace gpulet::nvml
