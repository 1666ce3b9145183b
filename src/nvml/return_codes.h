// What each return code of NVML means for the value that a call asks for: one table for every call.
//
// Only RESET_REQUIRED means that a GPU needs a reset, and only GPU_IS_LOST that it is lost. A code that
// nvml.h does not list means "no value now": an odd answer removes a value, never a device. A call that
// changes something fails with any code but SUCCESS. Source: nvml.h, nvmlReturn_t; codes seen on real
// drivers: docs/real-hardware.md.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpulet::nvml {

enum class Meaning {
  kValue,
  kNoValueNow,   // a later call may return it
  kNoSuchValue,  // this GPU or this driver does not have it
  kNeedsRight,   // the caller lacks a right: needed_right()
  kNeedsReset,   // the GPU must be reset
  kLost,         // the GPU has fallen off the bus
  kDriverGone,   // the driver is not loaded, or its library belongs to another one. Of a GPU's values, only
                 // those that find or identify it are evidence of that: it is no value otherwise.
};

struct ReturnCode {
  int nvml_return = 0;
  std::string_view name;  // "NOT_READY", as nvml.h without NVML_ERROR_
  Meaning meaning = Meaning::kNoValueNow;
  Code code = Code::kIo;  // of the error that a failed call returns
};

// All codes of nvml.h but SUCCESS, ascending.
std::span<const ReturnCode> return_codes();
// The row of a code. One that nvml.h does not list has the row of UNKNOWN.
const ReturnCode& find_return_code(int nvml_return);
// The meaning of an error of any function of this library, by its code.
Meaning meaning_of(const Error& error);
// Of errors that say something about the whole GPU: kNeedsReset and kLost.
bool is_device_fault(const Error& error);

// Of a call about a MIG device or an instance: it no longer exists.
bool is_gone(const Error& error);

// What a caller without permission for that function needs: "CAP_SYS_ADMIN or the MIG monitor right
// (NVIDIA_MIG_MONITOR_DEVICES)". Sources: nvml.h; NVIDIA's MIG user guide, "Device Nodes and Capabilities";
// the open kernel modules: listing the instances of a GPU needs the config right
// (subdeviceCtrlCmdGpuGetPartitions), setting a mode CAP_SYS_ADMIN (osIsAdministrator).
std::string_view needed_right(std::string_view function);

// The driver's functions that this program calls: "nvmlDeviceGetMemoryInfo_v2".
std::span<const std::string_view> called_functions();

// How often each function of the driver has returned each code, in this process. Any thread.
struct CallCount {
  std::string function;  // "nvmlDeviceGetMemoryInfo_v2"
  std::string code;      // "SUCCESS", "NOT_READY"; the number of a code that nvml.h does not list
  std::uint64_t count = 0;
};
// Ordered by function and code.
std::vector<CallCount> call_counts();
// `function` must have static storage.
void count_call(const char* function, int nvml_return);

}  // namespace gpulet::nvml
