#include "nvml/power.h"

#include <algorithm>

#include "nvml/library.h"

// As of a const member of PowerControl.
#define GPULET_NVML_POWER(function, ...) \
  call_nvml(session_.library_->api(), session_.library_->api().function, #function, raw(gpu_), __VA_ARGS__)
#define GPULET_NVML_POWER_RESET(function) \
  call_nvml(session_.library_->api(), session_.library_->api().function, #function, raw(gpu_))

namespace gpulet::nvml {

Status PowerControl::set_power_limit(MilliWatts limit) const {
  GPULET_TRY(session_.stale(gpu_));
  return GPULET_NVML_POWER(nvmlDeviceSetPowerManagementLimit, static_cast<unsigned>(limit.value));
}

Status PowerControl::lock_graphics_clocks(unsigned lowest, unsigned highest) const {
  GPULET_TRY(session_.stale(gpu_));
  return GPULET_NVML_POWER(nvmlDeviceSetGpuLockedClocks, lowest, highest);
}
Status PowerControl::unlock_graphics_clocks() const {
  GPULET_TRY(session_.stale(gpu_));
  return GPULET_NVML_POWER_RESET(nvmlDeviceResetGpuLockedClocks);
}
Status PowerControl::lock_memory_clocks(unsigned lowest, unsigned highest) const {
  GPULET_TRY(session_.stale(gpu_));
  return GPULET_NVML_POWER(nvmlDeviceSetMemoryLockedClocks, lowest, highest);
}
Status PowerControl::unlock_memory_clocks() const {
  GPULET_TRY(session_.stale(gpu_));
  return GPULET_NVML_POWER_RESET(nvmlDeviceResetMemoryLockedClocks);
}

Result<std::vector<unsigned>> PowerControl::supported_memory_clocks() const {
  GPULET_TRY(session_.stale(gpu_));
  std::vector<unsigned> clocks(kMaxMemoryClocks);
  unsigned count = kMaxMemoryClocks;
  GPULET_TRY(GPULET_NVML_POWER(nvmlDeviceGetSupportedMemoryClocks, &count, clocks.data()));
  clocks.resize(std::min(count, kMaxMemoryClocks));
  return clocks;
}

Result<std::vector<unsigned>> PowerControl::supported_graphics_clocks(unsigned memory_clock) const {
  GPULET_TRY(session_.stale(gpu_));
  std::vector<unsigned> clocks(kMaxGraphicsClocks);
  unsigned count = kMaxGraphicsClocks;
  GPULET_TRY(
      GPULET_NVML_POWER(nvmlDeviceGetSupportedGraphicsClocks, memory_clock, &count, clocks.data()));
  clocks.resize(std::min(count, kMaxGraphicsClocks));
  return clocks;
}

}  // namespace gpulet::nvml
