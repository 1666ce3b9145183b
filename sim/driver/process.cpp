// Processes on a GPU or a MIG device.
#include <algorithm>
#include <chrono>
#include <type_traits>

#include "sim/driver/rights.h"

using namespace gpulet::sim;

namespace {

// Process::kind.
constexpr std::uint8_t kCompute = 0;
constexpr std::uint8_t kGraphics = 1;
constexpr std::uint8_t kMps = 2;
constexpr std::uint8_t kAnyKind = 0xff;

// Room that nvmlDeviceGetProcessUtilization asks for at least, with processes or without (driver 580 on
// H100).
constexpr unsigned int kSampleBuffer = 72;

bool is_on_device(const GpuCall& call, const Process& process, std::uint8_t kind) {
  // As the kernel, which lists no process that the caller's PID namespace lacks.
  if (process.pid == 0 || process.pid == kHiddenPid) return false;
  if (kind != kAnyKind && process.kind != kind) return false;
  if (!call.is_mig()) return true;
  return process.gpu_instance == call.gpu_instance().id &&
         process.compute_instance == call.compute_instance().id;
}

unsigned int count_processes(const GpuCall& call, std::uint8_t kind) {
  const auto& all = call.gpu_state().processes;
  return static_cast<unsigned int>(std::count_if(std::begin(all), std::end(all), [&](const Process& process) {
    return is_on_device(call, process, kind);
  }));
}

template <class Info>
void fill_process(const Process& process, Info* info) {
  *info = {};
  info->pid = process.pid;
  info->usedGpuMemory = process.memory_bytes;
  if constexpr (!std::is_same_v<Info, nvmlProcessInfo_v1_t>) {
    info->gpuInstanceId = process.gpu_instance;
    info->computeInstanceId = process.compute_instance;
  }
}

template <class Info>
nvmlReturn_t list_processes(nvmlDevice_t device, std::uint8_t kind, unsigned int* count, Info* infos) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(count)) return error;
  if (const auto refused = check_mig_monitor(call)) return refused;
  const unsigned int room = *count;
  *count = count_processes(call, kind);
  if (*count > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (*count != 0 && infos == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned int next = 0;
  for (const Process& process : call.gpu_state().processes) {
    if (is_on_device(call, process, kind)) fill_process(process, &infos[next++]);
  }
  return NVML_SUCCESS;
}

// Drivers 535.43 to 535.54.03 write entries of 32 bytes through _v3, whose struct has 24.
struct LargeProcessInfo : nvmlProcessInfo_t {
  unsigned long long protected_memory;
};
constexpr std::string_view kDriverWithLargeEntries = "535.54.03";

nvmlReturn_t list_processes_v3(nvmlDevice_t device, std::uint8_t kind, unsigned int* count,
                               nvmlProcessInfo_t* infos) {
  const StateFile* state = session().state.load(std::memory_order_acquire);
  if (state != nullptr && state->lock_for_read()->driver.version == kDriverWithLargeEntries)
    return list_processes(device, kind, count, static_cast<LargeProcessInfo*>(infos));
  return list_processes(device, kind, count, infos);
}

unsigned long long now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<unsigned long long>(std::chrono::duration_cast<std::chrono::microseconds>(now).count());
}

}  // namespace

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                  nvmlProcessInfo_v1_t* infos) {
  return list_processes(device, kCompute, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_v2_t* infos) {
  return list_processes(device, kCompute, count, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_t* infos) {
  return list_processes_v3(device, kCompute, count, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                   nvmlProcessInfo_v1_t* infos) {
  return list_processes(device, kGraphics, count, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                      nvmlProcessInfo_v2_t* infos) {
  return list_processes(device, kGraphics, count, infos);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                      nvmlProcessInfo_t* infos) {
  return list_processes_v3(device, kGraphics, count, infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                     nvmlProcessInfo_v1_t* infos) {
  return list_processes(device, kMps, count, infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_v2_t* infos) {
  return list_processes(device, kMps, count, infos);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* count,
                                                        nvmlProcessInfo_t* infos) {
  return list_processes_v3(device, kMps, count, infos);
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t* details) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(details)) return error;
  if (details->version != nvmlProcessDetailList_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (const auto refused = check_mig_monitor(call)) return refused;
  if (details->mode > NVML_PROCESS_MODE_ALL) return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu_state().architecture < NVML_DEVICE_ARCH_HOPPER) return NVML_ERROR_NOT_SUPPORTED;
  // NVML_PROCESS_MODE_* number the kinds as Process::kind does.
  const auto kind =
      details->mode == NVML_PROCESS_MODE_ALL ? kAnyKind : static_cast<std::uint8_t>(details->mode);
  const unsigned int room = details->numProcArrayEntries;
  details->numProcArrayEntries = count_processes(call, kind);
  if (details->numProcArrayEntries > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (details->numProcArrayEntries != 0 && details->procArray == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned int next = 0;
  for (const Process& process : call.gpu_state().processes) {
    if (is_on_device(call, process, kind)) fill_process(process, &details->procArray[next++]);
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                             unsigned int* count, unsigned long long last_seen) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  if (call.gpu_state().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  const unsigned long long now = now_us();
  const unsigned int total = count_processes(call, kAnyKind);
  const unsigned int room = *count;
  if (samples == nullptr || room < std::max(total, kSampleBuffer)) {
    *count = std::max(total, kSampleBuffer);
    return NVML_ERROR_INSUFFICIENT_SIZE;
  }
  if (total == 0 || now <= last_seen) return NVML_ERROR_NOT_FOUND;
  *count = total;
  unsigned int next = 0;
  for (const Process& process : call.gpu_state().processes) {
    if (is_on_device(call, process, kAnyKind))
      samples[next++] = {process.pid, now, process.sm_utilization, process.memory_utilization, 0, 0};
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  if (info->version != nvmlProcessesUtilizationInfo_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (call.gpu_state().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  const unsigned long long now = now_us();
  const unsigned int total = count_processes(call, kAnyKind);
  const unsigned int room = info->processSamplesCount;
  info->processSamplesCount = total;
  if (total == 0 || now <= info->lastSeenTimeStamp) return NVML_ERROR_NOT_FOUND;
  if (info->procUtilArray == nullptr || room < total) return NVML_ERROR_INSUFFICIENT_SIZE;
  unsigned int next = 0;
  for (const Process& process : call.gpu_state().processes) {
    if (!is_on_device(call, process, kAnyKind)) continue;
    info->procUtilArray[next++] = {
        now, process.pid, process.sm_utilization, process.memory_utilization, 0, 0, 0, 0};
  }
  return NVML_SUCCESS;
}
