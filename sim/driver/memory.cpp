// Memory and how busy the GPU is.
#include <algorithm>
#include <chrono>

#include "sim/driver/call.h"

using namespace gpulet::sim;

namespace {

constexpr std::uint64_t kMiB = 1u << 20;
// How long the driver averages over.
constexpr unsigned int kSamplingPeriodUs = 167'000;

struct Memory {
  std::uint64_t total;
  std::uint64_t reserved;
  std::uint64_t used;
  std::uint64_t free() const { return total - std::min(total, reserved + used); }
};

Memory memory_of(const GpuCall& call) {
  const Gpu& gpu = call.gpu();
  if (!call.is_mig()) return Memory{gpu.memory_total, gpu.memory_reserved, memory_in_use(gpu)};
  return Memory{call.profile().memory_mib * kMiB, 0, memory_in_use(gpu, call.gpu_instance().id)};
}

template <class Read>
nvmlReturn_t engine_utilization(nvmlDevice_t device, unsigned int* percent, unsigned int* period_us,
                                Read read) {
  const GpuCall call(device);
  if (const auto refused = call.refused(percent, period_us)) return refused;
  if (call.gpu().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  *percent = read(call.gpu());
  *period_us = kSamplingPeriodUs;
  return NVML_SUCCESS;
}

std::int64_t sample_of(const Gpu& gpu, nvmlSamplingType_t type) {
  switch (type) {
    case NVML_TOTAL_POWER_SAMPLES:
      return gpu.power_usage_mw;
    case NVML_GPU_UTILIZATION_SAMPLES:
      return gpu.utilization_gpu;
    case NVML_MEMORY_UTILIZATION_SAMPLES:
      return gpu.utilization_memory;
    case NVML_ENC_UTILIZATION_SAMPLES:
      return gpu.utilization_encoder;
    case NVML_DEC_UTILIZATION_SAMPLES:
      return gpu.utilization_decoder;
    case NVML_PROCESSOR_CLK_SAMPLES:
      return gpu.clocks.current[NVML_CLOCK_GRAPHICS];
    case NVML_MEMORY_CLK_SAMPLES:
      return gpu.clocks.current[NVML_CLOCK_MEM];
    case NVML_JPG_UTILIZATION_SAMPLES:
      return gpu.utilization_jpeg;
    case NVML_OFA_UTILIZATION_SAMPLES:
      return gpu.utilization_ofa;
    default:
      return kNotReported;
  }
}

}  // namespace

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(memory)) return refused;
  const Memory found = memory_of(call);
  // The first version has no room for what the driver keeps: it counts as used.
  *memory = {found.total, found.free(), found.total - found.free()};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(memory)) return refused;
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const Memory found = memory_of(call);
  memory->total = found.total;
  memory->reserved = found.reserved;
  memory->free = found.free();
  memory->used = found.used;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t* memory) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(memory)) return refused;
  const Gpu& gpu = call.gpu();
  *memory = {gpu.bar1_total, gpu.bar1_total - std::min(gpu.bar1_total, gpu.bar1_used), gpu.bar1_used};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(utilization)) return refused;
  // With MIG on, neither the GPU nor its parts report it.
  if (call.gpu().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  *utilization = {call.gpu().utilization_gpu, call.gpu().utilization_memory};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned int* percent,
                                             unsigned int* period_us) {
  return engine_utilization(device, percent, period_us,
                            [](const Gpu& gpu) { return gpu.utilization_encoder; });
}
nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned int* percent,
                                             unsigned int* period_us) {
  return engine_utilization(device, percent, period_us,
                            [](const Gpu& gpu) { return gpu.utilization_decoder; });
}
nvmlReturn_t nvmlDeviceGetJpgUtilization(nvmlDevice_t device, unsigned int* percent,
                                         unsigned int* period_us) {
  return engine_utilization(device, percent, period_us, [](const Gpu& gpu) { return gpu.utilization_jpeg; });
}
nvmlReturn_t nvmlDeviceGetOfaUtilization(nvmlDevice_t device, unsigned int* percent,
                                         unsigned int* period_us) {
  return engine_utilization(device, percent, period_us, [](const Gpu& gpu) { return gpu.utilization_ofa; });
}

// One sample, taken now.
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen,
                                  nvmlValueType_t* value_type, unsigned int* count, nvmlSample_t* samples) {
  const GpuCall call(device);
  if (const auto refused = call.refused(value_type, count)) return refused;
  if (type >= NVML_SAMPLINGTYPE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const std::int64_t value = sample_of(call.gpu(), type);
  if (value == kNotReported || call.gpu().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  const auto timestamp = static_cast<unsigned long long>(now.count());
  if (timestamp <= last_seen) return NVML_ERROR_NOT_FOUND;
  *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
  if (samples == nullptr) {
    *count = 1;
    return NVML_SUCCESS;
  }
  if (*count == 0) return NVML_ERROR_INVALID_ARGUMENT;
  *count = 1;
  samples[0].timeStamp = timestamp;
  samples[0].sampleValue.ullVal = static_cast<unsigned long long>(value);
  return NVML_SUCCESS;
}
