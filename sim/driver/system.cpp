// Calls about the driver and the node: versions, process names, units that this machine does not have.
#include <dlfcn.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/file.h"
#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

// Runs `read(machine)` under the lock.
template <class Read>
nvmlReturn_t read_machine_value(const void* result, Read read) {
  if (const auto error = wait_out_driver_faults()) return error;
  const ReadGuard machine = session().state.load(std::memory_order_acquire)->lock_for_read();
  if (const auto error = driver_ready(*machine)) return error;
  if (result == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return read(*machine);
}

nvmlReturn_t report_none(unsigned int* count) {
  return read_machine_value(count, [count](const Machine&) {
    *count = 0;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t cuda_version(int* version) {
  return read_machine_value(version, [version](const Machine& machine) {
    return put_reported(machine.driver.cuda_version, version);
  });
}

// Whether this library was loaded from /driver-root, where a Pod has the host's driver.
bool is_below_container_root() {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(&nvmlInit_v2), &info) != 0 && info.dli_fname != nullptr &&
         std::string_view(info.dli_fname).starts_with("/driver-root/");
}

// Returns argv[0] of a process, as NVML does; "" if there is none.
std::string process_command(unsigned int pid) {
  auto line = gpulet::read_file("/proc/" + std::to_string(pid) + "/cmdline");
  return line ? std::string(line->c_str()) : std::string();
}

}  // namespace

const char* nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_ALREADY_INITIALIZED:
      return "Already Initialized";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_INSUFFICIENT_POWER:
      return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED:
      return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
      return "Timeout";
    case NVML_ERROR_IRQ_ISSUE:
      return "Interrupt Request Issue";
    case NVML_ERROR_LIBRARY_NOT_FOUND:
      return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
      return "Function Not Found";
    case NVML_ERROR_CORRUPTED_INFOROM:
      return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST:
      return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED:
      return "GPU requires reset";
    case NVML_ERROR_OPERATING_SYSTEM:
      return "GPU access blocked by the operating system";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
      return "Driver/library version mismatch";
    case NVML_ERROR_IN_USE:
      return "In use by another client";
    case NVML_ERROR_MEMORY:
      return "Insufficient Memory";
    case NVML_ERROR_NO_DATA:
      return "No data";
    case NVML_ERROR_VGPU_ECC_NOT_SUPPORTED:
      return "vGPU not supported with ECC enabled";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
      return "Insufficient Resources";
    case NVML_ERROR_FREQ_NOT_SUPPORTED:
      return "Frequency not supported";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
      return "Argument version mismatch";
    case NVML_ERROR_DEPRECATED:
      return "Deprecated";
    case NVML_ERROR_NOT_READY:
      return "Not ready";
    case NVML_ERROR_GPU_NOT_FOUND:
      return "GPU not found";
    case NVML_ERROR_INVALID_STATE:
      return "Invalid state";
    case NVML_ERROR_RESET_TYPE_NOT_SUPPORTED:
      return "Reset type not supported";
    case NVML_ERROR_UNKNOWN:
      return "Unknown Error";
  }
  return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return read_machine_value(
      version, [=](const Machine& machine) { return put_text(machine.driver.version, version, length); });
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  return read_machine_value(version, [=](const Machine& machine) {
    return put_text(machine.driver.nvml_version, version, length);
  });
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) { return cuda_version(version); }
// A real one loads libcuda.so.1, and the loader of a device plugin's Pod does not search its driver root.
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return is_below_container_root() ? NVML_ERROR_LIBRARY_NOT_FOUND : cuda_version(version);
}

nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t* info, unsigned int length) {
  return read_machine_value(info, [=](const Machine& machine) {
    if (info->version != nvmlSystemDriverBranchInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    // "r570_00" of "570.124.06".
    const std::string version = machine.driver.version;
    const std::string branch = "r" + version.substr(0, version.find('.')) + "_00";
    return put_text(branch.c_str(), info->branch, std::min<unsigned int>(length, sizeof(info->branch)));
  });
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  std::string found;
  const nvmlReturn_t status = read_machine_value(name, [&](const Machine& machine) {
    for (std::uint32_t i = 0; i < machine.gpu_count; ++i) {
      for (const Process& process : machine.gpus[i].processes) {
        if (process.pid == pid && pid != 0) found = process.name;
      }
    }
    return NVML_SUCCESS;
  });
  if (status != NVML_SUCCESS) return status;
  if (length == 0) return NVML_ERROR_INVALID_ARGUMENT;
  if (found.empty()) found = process_command(pid);
  if (found.empty()) return NVML_ERROR_NOT_FOUND;
  return put_text(found.c_str(), name, length);
}

nvmlReturn_t nvmlSystemGetHicVersion(unsigned int* count, nvmlHwbcEntry_t*) { return report_none(count); }
nvmlReturn_t nvmlUnitGetCount(unsigned int* count) { return report_none(count); }
nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned int* count) { return report_none(count); }

nvmlReturn_t nvmlUnitGetHandleByIndex(unsigned int, nvmlUnit_t*) {
  const nvmlReturn_t error = enter_driver();
  return error != NVML_SUCCESS ? error : NVML_ERROR_INVALID_ARGUMENT;
}
nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(unsigned int, nvmlExcludedDeviceInfo_t*) {
  const nvmlReturn_t error = enter_driver();
  return error != NVML_SUCCESS ? error : NVML_ERROR_INVALID_ARGUMENT;
}
