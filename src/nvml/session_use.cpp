// The calls about who uses a device and who may.
#include <algorithm>
#include <map>

#include "nvml/api.h"
#include "nvml/errors.h"
#include "nvml/raw.h"
#include "nvml/session.h"
#include "nvml/usage.h"

#define GPULET_NVML(function, ...) call(library_->api(), library_->api().function, #function, __VA_ARGS__)

namespace gpulet::nvml {
namespace {

// What a GPU has room for, by far; more are as many as are needed to know that it is in use.
constexpr unsigned kMostProcesses = 4096;
constexpr unsigned kUsualProcesses = 64;
constexpr unsigned kNoInstance = 0xFFFFFFFF;

std::optional<unsigned> instance_of(unsigned id) {
  return id == kNoInstance ? std::nullopt : std::optional<unsigned>(id);
}

constexpr unsigned long long kMemoryUnknown = ~0ULL;  // NVML_VALUE_NOT_AVAILABLE

// A process may have contexts of several kinds. Each list then has it, with all that it holds.
using Found = std::map<Process, std::optional<std::uint64_t>>;

// One kind of process. A driver or a GPU that does not tell that kind has none of it.
template <class Function>
Status collect(const Api& api, Function function, const char* name, nvmlDevice_t device, Found& all) {
  std::vector<nvmlProcessInfo_t> infos(kUsualProcesses);
  while (true) {
    auto count = static_cast<unsigned>(infos.size());
    if (function == nullptr) return {};
    const nvmlReturn_t result = function(device, &count, infos.data());
    if (result == NVML_ERROR_INSUFFICIENT_SIZE && infos.size() < kMostProcesses) {
      // More may come until it is asked again.
      infos.resize(std::min(std::max<std::size_t>(count, infos.size()) * 2, std::size_t{kMostProcesses}));
      continue;
    }
    if (result == NVML_ERROR_NOT_SUPPORTED) return {};
    GPULET_TRY(to_status(api, result, name));
    infos.resize(std::min<std::size_t>(count, infos.size()));
    for (const auto& info : infos) {
      auto& memory = all[{info.pid, instance_of(info.gpuInstanceId), instance_of(info.computeInstanceId)}];
      if (info.usedGpuMemory != kMemoryUnknown)
        memory = std::max<std::uint64_t>(memory.value_or(0), info.usedGpuMemory);
    }
    return {};
  }
}

Result<Found> processes_of(const Api& api, nvmlDevice_t device) {
  if (api.nvmlDeviceGetComputeRunningProcesses_v3 == nullptr) {
    return fail(Code::kUnsupported,
                "nvmlDeviceGetComputeRunningProcesses_v3: this driver has no such function");
  }
  Found all;
  GPULET_TRY(collect(api, api.nvmlDeviceGetComputeRunningProcesses_v3,
                     "nvmlDeviceGetComputeRunningProcesses_v3", device, all));
  GPULET_TRY(collect(api, api.nvmlDeviceGetMPSComputeRunningProcesses_v3,
                     "nvmlDeviceGetMPSComputeRunningProcesses_v3", device, all));
  GPULET_TRY(collect(api, api.nvmlDeviceGetGraphicsRunningProcesses_v3,
                     "nvmlDeviceGetGraphicsRunningProcesses_v3", device, all));
  return all;
}

}  // namespace

Result<std::vector<Process>> Session::processes(Device device) const {
  GPULET_TRY(stale(device));
  GPULET_TRY_ASSIGN(const auto found, processes_of(library_->api(), raw(device)));
  std::vector<Process> all;
  for (const auto& [process, memory] : found) all.push_back(process);
  return all;
}

Result<std::vector<ProcessMemory>> Usage::processes() const {
  GPULET_TRY(session_.stale(device_));
  GPULET_TRY_ASSIGN(const auto found, processes_of(session_.library_->api(), raw(device_)));
  std::vector<ProcessMemory> all;
  for (const auto& [process, memory] : found) {
    all.push_back({process, memory ? std::optional<Bytes>(Bytes{*memory}) : std::nullopt});
  }
  return all;
}

Result<ComputeMode> Session::compute_mode(Device device) const {
  GPULET_TRY(stale(device));
  nvmlComputeMode_t mode = NVML_COMPUTEMODE_DEFAULT;
  GPULET_TRY(GPULET_NVML(nvmlDeviceGetComputeMode, raw(device), &mode));
  switch (mode) {
    case NVML_COMPUTEMODE_EXCLUSIVE_THREAD:
      return ComputeMode::kExclusiveThread;
    case NVML_COMPUTEMODE_PROHIBITED:
      return ComputeMode::kProhibited;
    case NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
      return ComputeMode::kExclusiveProcess;
    default:
      return ComputeMode::kDefault;
  }
}

Status Session::set_compute_mode(Device device, ComputeMode mode) const {
  GPULET_TRY(stale(device));
  nvmlComputeMode_t wanted = NVML_COMPUTEMODE_DEFAULT;
  switch (mode) {
    case ComputeMode::kDefault:
      break;
    case ComputeMode::kExclusiveThread:
      wanted = NVML_COMPUTEMODE_EXCLUSIVE_THREAD;
      break;
    case ComputeMode::kProhibited:
      wanted = NVML_COMPUTEMODE_PROHIBITED;
      break;
    case ComputeMode::kExclusiveProcess:
      wanted = NVML_COMPUTEMODE_EXCLUSIVE_PROCESS;
      break;
  }
  return GPULET_NVML(nvmlDeviceSetComputeMode, raw(device), wanted);
}

}  // namespace gpulet::nvml

#undef GPULET_NVML
