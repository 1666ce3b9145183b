// Memory errors: ECC counters, retired pages, remapped rows.
#include "sim/driver/ecc.h"

#include <algorithm>
#include <numeric>

#include "sim/state/mig.h"

namespace gpulet::sim {

std::uint64_t ecc_total(const Gpu& gpu, unsigned int type, unsigned int counter) {
  const auto& counts = gpu.ecc[type][counter].by_location;
  return std::accumulate(std::begin(counts), std::end(counts), std::uint64_t{0});
}

std::uint32_t retired_pages(const Gpu& gpu, std::uint32_t cause) {
  const auto* end = gpu.retired_pages + gpu.retired_page_count;
  return static_cast<std::uint32_t>(std::count_if(
      gpu.retired_pages, end, [cause](const RetiredPage& page) { return page.cause == cause; }));
}

}  // namespace gpulet::sim

using namespace gpulet::sim;

namespace {

// The counters asked for, or why there are none.
nvmlReturn_t find_counts(const GpuCall& call, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                         const EccCounts** counts) {
  if (type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu().ecc_supported == 0 || call.gpu().ecc_current == 0) return NVML_ERROR_NOT_SUPPORTED;
  *counts = &call.gpu().ecc[type][counter];
  return NVML_SUCCESS;
}

bool has_instances(const Gpu& gpu) {
  return std::any_of(std::begin(gpu.mig.instances), std::end(gpu.mig.instances),
                     [](const GpuInstance& i) { return i.used != 0; });
}

nvmlReturn_t list_retired(nvmlDevice_t device, nvmlPageRetirementCause_t cause, unsigned int* count,
                          unsigned long long* addresses, unsigned long long* timestamps) {
  const GpuCall call(device);
  if (const auto refused = call.refused(count)) return refused;
  const Gpu& gpu = call.gpu();
  if (cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (gpu.retired_pages_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  const unsigned int room = *count;
  const std::uint32_t total = retired_pages(gpu, cause);
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
  if (const auto refused = call.refused(current, pending)) return refused;
  if (call.gpu().ecc_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  *current = static_cast<nvmlEnableState_t>(call.gpu().ecc_current);
  *pending = static_cast<nvmlEnableState_t>(call.gpu().ecc_pending);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  const GpuCall call(device);
  if (const auto refused = call.refused(mode)) return refused;
  if (call.gpu().ecc_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  *mode = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, nvmlEnableState_t mode) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  if (mode > NVML_FEATURE_ENABLED) return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu().ecc_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  call.gpu().ecc_pending = mode;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counter) {
  const GpuEdit call(device);
  if (const auto refused = call.refused()) return refused;
  if (counter >= NVML_ECC_COUNTER_TYPE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  if (call.gpu().ecc_supported == 0 || call.gpu().ecc_current == 0) return NVML_ERROR_NOT_SUPPORTED;
  for (auto& by_counter : call.gpu().ecc) by_counter[counter] = {};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                         nvmlEccCounterType_t counter, unsigned long long* total) {
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(total)) return refused;
  const EccCounts* counts = nullptr;
  if (const auto missing = find_counts(call, type, counter, &counts)) return missing;
  *total = ecc_total(call.gpu(), type, counter);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type,
                                            nvmlEccCounterType_t counter, nvmlEccErrorCounts_t* detailed) {
  const GpuCall call(device);
  if (const auto refused = call.refused(detailed)) return refused;
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
  const GpuCall call(device, Accepts::kMigToo);
  if (const auto refused = call.refused(count)) return refused;
  if (location >= NVML_MEMORY_LOCATION_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  const EccCounts* counts = nullptr;
  if (const auto missing = find_counts(call, type, counter, &counts)) return missing;
  // Until Volta the parts of it are counted, each by itself.
  if (location == NVML_MEMORY_LOCATION_SRAM && call.gpu().architecture < NVML_DEVICE_ARCH_TURING)
    return NVML_ERROR_NOT_SUPPORTED;
  *count = counts->by_location[location];
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t* status) {
  const GpuCall call(device);
  if (const auto refused = call.refused(status)) return refused;
  if (status->version != nvmlEccSramErrorStatus_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  const Gpu& gpu = call.gpu();
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
  if (const auto refused = call.refused(pending)) return refused;
  if (call.gpu().retired_pages_supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  *pending = call.gpu().retired_pages_pending != 0 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int* correctable,
                                       unsigned int* uncorrectable, unsigned int* pending,
                                       unsigned int* failed) {
  const GpuCall call(device);
  if (const auto refused = call.refused(correctable, uncorrectable, pending, failed)) return refused;
  const RemappedRows& rows = call.gpu().remapped_rows;
  if (rows.supported == 0 || has_instances(call.gpu())) return NVML_ERROR_NOT_SUPPORTED;
  *correctable = rows.correctable;
  *uncorrectable = rows.uncorrectable;
  *pending = rows.pending;
  *failed = rows.failed;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t* info) {
  const GpuCall call(device);
  if (const auto refused = call.refused(info)) return refused;
  const RemappedRows& rows = call.gpu().remapped_rows;
  if (rows.supported == 0 || has_instances(call.gpu())) return NVML_ERROR_NOT_SUPPORTED;
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
  if (const auto refused = call.refused(values)) return refused;
  const RemappedRows& rows = call.gpu().remapped_rows;
  if (rows.supported == 0) return NVML_ERROR_NOT_SUPPORTED;
  const auto& banks = rows.bank_histogram;
  *values = {banks[0], banks[1], banks[2], banks[3], banks[4]};
  return NVML_SUCCESS;
}
