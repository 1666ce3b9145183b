// Memory, utilization and memory errors: ECC counters, retired pages, remapped rows.
#include <algorithm>
#include <chrono>

#include "sim/driver/memory_limits.h"
#include "sim/driver/rights.h"
#include "sim/state/mig.h"

using namespace gpulet::sim;

namespace {

constexpr std::uint64_t kMiB = 1u << 20;
// The driver's averaging period.
constexpr unsigned int kSamplingPeriodUs = 167'000;

struct MemoryUse {
  std::uint64_t total;
  std::uint64_t reserved;
  std::uint64_t used;
  std::uint64_t free_bytes() const { return total - std::min(total, reserved + used); }
};

MemoryUse memory_use(const GpuCall& call) {
  const Gpu& gpu = call.gpu_state();
  if (!call.is_mig()) return MemoryUse{gpu.memory_total, gpu.memory_reserved, memory_in_use(gpu)};
  return MemoryUse{call.mig_profile().memory_mib * kMiB, 0, memory_in_use(gpu, call.gpu_instance().id)};
}

template <class Read>
nvmlReturn_t engine_utilization(nvmlDevice_t device, unsigned int* percent, unsigned int* period_us,
                                Read read) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(percent, period_us)) return error;
  if (call.gpu_state().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  *percent = read(call.gpu_state());
  *period_us = kSamplingPeriodUs;
  return NVML_SUCCESS;
}

std::int64_t utilization_sample(const Gpu& gpu, nvmlSamplingType_t type) {
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
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(memory)) return error;
  if (const auto refused = check_mig_monitor(call)) return refused;
  const MemoryUse found = memory_use(call);
  // Version 1 has no member for reserved memory: it counts as used.
  *memory = {found.total, found.free_bytes(), found.total - found.free_bytes()};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  const auto cgroup = cgroup_of_caller();
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(memory)) return error;
  if (const auto refused = check_mig_monitor(call)) return refused;
  if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const MemoryUse found = memory_use(call);
  memory->total = found.total;
  memory->reserved = found.reserved;
  memory->free = found.free_bytes();
  memory->used = found.used;
  if (const auto limit = limit_seen_by(call, cgroup); limit && limit->hard != kUnlimitedMemory) {
    memory->total = limit->hard;
    memory->reserved = 0;
    memory->used = limit->used;
    memory->free = std::min(found.free_bytes(), limit->hard - std::min(limit->hard, limit->used));
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t* memory) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(memory)) return error;
  if (const auto refused = check_mig_monitor(call)) return refused;
  const Gpu& gpu = call.gpu_state();
  *memory = {gpu.bar1_total, gpu.bar1_total - std::min(gpu.bar1_total, gpu.bar1_used), gpu.bar1_used};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(utilization)) return error;
  // With MIG on, neither the GPU nor its instances report it.
  if (call.gpu_state().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
  *utilization = {call.gpu_state().utilization_gpu, call.gpu_state().utilization_memory};
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

// Returns one current sample.
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long last_seen,
                                  nvmlValueType_t* value_type, unsigned int* count, nvmlSample_t* samples) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(value_type, count)) return error;
  if (type >= NVML_SAMPLINGTYPE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const std::int64_t value = utilization_sample(call.gpu_state(), type);
  if (value == kNotReported || call.gpu_state().mig.current != 0) return NVML_ERROR_NOT_SUPPORTED;
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

namespace {

// Finds the requested counters. Returns the error code if there are none.
nvmlReturn_t find_counts(const GpuCall& call, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                         const EccCounts** counts) {
  if (type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu_state().ecc_supported == 0 || call.gpu_state().ecc_current == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  *counts = &call.gpu_state().ecc[type][counter];
  return NVML_SUCCESS;
}

bool has_instances(const Gpu& gpu) {
  return std::any_of(std::begin(gpu.mig.instances), std::end(gpu.mig.instances),
                     [](const GpuInstance& i) { return i.used != 0; });
}

nvmlReturn_t list_retired(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int* count,
                          unsigned long long* addresses, unsigned long long* timestamps) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(count)) return error;
  const Gpu& gpu = call.gpu_state();
  if (cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (gpu.retired_pages_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  const unsigned int room = *count;
  const std::uint32_t total = retired_page_count(gpu, cause);
  *count = total;
  if (total > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (total != 0 && addresses == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  unsigned int next = 0;
  for (std::uint32_t i = 0; i < gpu.retired_page_count; ++i) {
    if (gpu.retired_pages[i].cause != static_cast<std::uint32_t>(cause)) continue;
    addresses[next] = gpu.retired_pages[i].address;
    if (timestamps != nullptr) timestamps[next] = gpu.retired_pages[i].timestamp;
    ++next;
  }
  return NVML_SUCCESS;
}

}  // namespace

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t* current,
                                  nvmlEnableState_t* pending) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(current, pending)) return error;
  if (call.gpu_state().ecc_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  *current = static_cast<nvmlEnableState_t>(call.gpu_state().ecc_current);
  *pending = static_cast<nvmlEnableState_t>(call.gpu_state().ecc_pending);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(mode)) return error;
  if (call.gpu_state().ecc_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  *mode = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t mode) {
  const GpuEdit call(device);
  if (const auto error = call.entry_error()) return error;
  if (mode > NVML_FEATURE_ENABLED) return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu_state().ecc_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  call.gpu_state().ecc_pending = mode;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counter) {
  const GpuEdit call(device);
  if (const auto error = call.entry_error()) return error;
  if (counter >= NVML_ECC_COUNTER_TYPE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu_state().ecc_supported == 0 || call.gpu_state().ecc_current == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  for (auto& by_counter : call.gpu_state().ecc) by_counter[counter] = {};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long* total) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(total)) return error;
  const EccCounts* counts = nullptr;
  if (const auto missing = find_counts(call, type, counter, &counts)) return missing;
  *total = ecc_total(call.gpu_state(), type, counter);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                            nvmlEccCounterType_t counter, nvmlEccErrorCounts_t* detailed) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(detailed)) return error;
  const EccCounts* counts = nullptr;
  if (const auto missing = find_counts(call, type, counter, &counts)) return missing;
  const auto& at = counts->by_location;
  *detailed = {at[NVML_MEMORY_LOCATION_L1_CACHE], at[NVML_MEMORY_LOCATION_L2_CACHE],
               at[NVML_MEMORY_LOCATION_DRAM], at[NVML_MEMORY_LOCATION_REGISTER_FILE]};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                             nvmlEccCounterType_t counter, nvmlMemoryLocation_t location,
                                             unsigned long long* count) {
  const GpuCall call(device, Accepts::kGpuOrMig);
  if (const auto error = call.entry_error(count)) return error;
  if (location >= NVML_MEMORY_LOCATION_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const EccCounts* counts = nullptr;
  if (const auto missing = find_counts(call, type, counter, &counts)) return missing;
  // Until Volta, each location has its own counter.
  if (location == NVML_MEMORY_LOCATION_SRAM && call.gpu_state().architecture < NVML_DEVICE_ARCH_TURING)
    return NVML_ERROR_NOT_SUPPORTED;
  *count = counts->by_location[location];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t* status) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(status)) return error;
  if (status->version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const Gpu& gpu = call.gpu_state();
  if (gpu.ecc_supported == 0 || gpu.ecc_current == 0 || gpu.remapped_rows.supported == 0)
    return NVML_ERROR_NOT_SUPPORTED;
  const auto sram = [&gpu](unsigned type, unsigned counter) {
    return gpu.ecc[type][counter].by_location[NVML_MEMORY_LOCATION_SRAM];
  };
  const unsigned int version = status->version;
  *status = {};
  status->version = version;
  status->aggregateUncSecDed = sram(1, 1);
  status->aggregateCor = sram(0, 1);
  status->volatileUncSecDed = sram(1, 0);
  status->volatileCor = sram(0, 0);
  status->aggregateUncBucketSm = sram(1, 1);
  status->bThresholdExceeded = gpu.sram_threshold;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                       unsigned int* count, unsigned long long* addresses) {
  return list_retired(device, cause, count, addresses, nullptr);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, nvmlPageRetirementCause_t cause,
                                          unsigned int* count, unsigned long long* addresses,
                                          unsigned long long* timestamps) {
  return list_retired(device, cause, count, addresses, timestamps);
}

nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t* pending) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(pending)) return error;
  if (call.gpu_state().retired_pages_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  *pending = call.gpu_state().retired_pages_pending != 0 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int* correctable,
                                       unsigned int* uncorrectable, unsigned int* pending,
                                       unsigned int* failed) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(correctable, uncorrectable, pending, failed)) return error;
  const RemappedRows& rows = call.gpu_state().remapped_rows;
  if (rows.supported == 0 || has_instances(call.gpu_state())) return NVML_ERROR_NOT_SUPPORTED;
  *correctable = rows.correctable;
  *uncorrectable = rows.uncorrectable;
  *pending = rows.pending;
  *failed = rows.failed;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t* info) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(info)) return error;
  const RemappedRows& rows = call.gpu_state().remapped_rows;
  if (rows.supported == 0 || has_instances(call.gpu_state())) return NVML_ERROR_NOT_SUPPORTED;
  *info = {};
  info->corrActiveRemaps = rows.correctable;
  info->uncActiveRemaps = rows.uncorrectable;
  info->bPending = rows.pending;
  info->bFailureOccurred = rows.failed;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device,
                                               nvmlRowRemapperHistogramValues_t* values) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(values)) return error;
  const RemappedRows& rows = call.gpu_state().remapped_rows;
  if (rows.supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  const auto& banks = rows.bank_histogram;
  *values = {banks[0], banks[1], banks[2], banks[3], banks[4]};
  return NVML_SUCCESS;
}
