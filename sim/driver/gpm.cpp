// GPU performance monitoring. Real monitors count cycles between two samples; here a sample holds what the
// load is when it is taken, and a metric is the mean of its two samples.
#include <algorithm>
#include <limits>
#include <memory>

#include "sim/driver/nvlink.h"
#include "sim/state/mig.h"

using namespace gpulet::sim;

// What the handle of a sample points to.
struct nvmlGpmSample_st {
  bool taken;
  bool of_instance;
  std::uint64_t when_ns;
  double busy;                             // percent of the time, of the GPU or the GPU instance
  double memory;                           // percent of the bandwidth
  double transmitted_kbps, received_kbps;  // PCIe
  std::uint64_t nvlink_transmitted_kib, nvlink_received_kib;
};

namespace {

constexpr double kKilobyte = 1000;
constexpr double kMebibyte = 1 << 20;
constexpr double kNanosecondsInSecond = 1e9;

// What a training job's load looks like: how much of the busy time a part of the GPU works.
struct Part {
  unsigned int metric;
  double share;
};
constexpr Part kParts[] = {
    {NVML_GPM_METRIC_GRAPHICS_UTIL, 1},      {NVML_GPM_METRIC_SM_UTIL, 0.9},
    {NVML_GPM_METRIC_SM_OCCUPANCY, 0.5},     {NVML_GPM_METRIC_INTEGER_UTIL, 0.2},
    {NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.6},  {NVML_GPM_METRIC_DFMA_TENSOR_UTIL, 0},
    {NVML_GPM_METRIC_HMMA_TENSOR_UTIL, 0.6}, {NVML_GPM_METRIC_DMMA_TENSOR_UTIL, 0},
    {NVML_GPM_METRIC_IMMA_TENSOR_UTIL, 0},   {NVML_GPM_METRIC_FP64_UTIL, 0},
    {NVML_GPM_METRIC_FP32_UTIL, 0.25},       {NVML_GPM_METRIC_FP16_UTIL, 0.1},
};

bool has_monitors(const Gpu& gpu) { return gpu.architecture >= NVML_DEVICE_ARCH_HOPPER; }

void take(const Gpu& gpu, nvmlGpmSample_t sample) {
  *sample = {};
  sample->taken = true;
  sample->when_ns = monotonic_ns();
  sample->busy = gpu.utilization_gpu;
  sample->memory = gpu.utilization_memory;
  sample->transmitted_kbps = gpu.pcie_tx_kbps;
  sample->received_kbps = gpu.pcie_rx_kbps;
  for (const NvLink& link : gpu.links) {
    sample->nvlink_transmitted_kib += link.transmitted_kib;
    sample->nvlink_received_kib += link.received_kib;
  }
}

double mean(double first, double second) { return (first + second) / 2; }

// MiB a second from a counter of KiB.
double rate(std::uint64_t first, std::uint64_t second, double seconds) {
  if (seconds <= 0 || second < first) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(second - first) / 1024 / seconds;
}

nvmlReturn_t compute(const nvmlGpmSample_st& first, const nvmlGpmSample_st& second, nvmlGpmMetric_t* metric) {
  const double seconds = second.when_ns < first.when_ns
                             ? 0
                             : static_cast<double>(second.when_ns - first.when_ns) / kNanosecondsInSecond;
  for (const Part& part : kParts) {
    if (part.metric != metric->metricId) continue;
    metric->value = mean(first.busy, second.busy) * part.share;
    return NVML_SUCCESS;
  }
  if (metric->metricId == NVML_GPM_METRIC_DRAM_BW_UTIL) {
    metric->value = mean(first.memory, second.memory);
    return NVML_SUCCESS;
  }
  // The bus and the links are the whole GPU's.
  if (second.of_instance) return NVML_ERROR_NOT_SUPPORTED;
  switch (metric->metricId) {
    case NVML_GPM_METRIC_PCIE_TX_PER_SEC:
      metric->value = mean(first.transmitted_kbps, second.transmitted_kbps) * kKilobyte / kMebibyte;
      return NVML_SUCCESS;
    case NVML_GPM_METRIC_PCIE_RX_PER_SEC:
      metric->value = mean(first.received_kbps, second.received_kbps) * kKilobyte / kMebibyte;
      return NVML_SUCCESS;
    case NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC:
      metric->value = rate(first.nvlink_transmitted_kib, second.nvlink_transmitted_kib, seconds);
      return NVML_SUCCESS;
    case NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC:
      metric->value = rate(first.nvlink_received_kib, second.nvlink_received_kib, seconds);
      return NVML_SUCCESS;
    default:
      return NVML_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t* support) {
  const GpuCall call(device);
  if (const auto refused = call.refused(support)) return refused;
  if (support->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  support->isSupportedDevice = has_monitors(call.gpu()) ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t* sample) {
  if (const auto refused = enter_driver()) return refused;
  if (sample == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *sample = std::make_unique<nvmlGpmSample_st>().release();
  return NVML_SUCCESS;
}

// Of a client's memory, so also without a driver.
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
  if (sample == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const std::unique_ptr<nvmlGpmSample_st> owned(sample);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
  const GpuCall call(device);
  if (const auto refused = call.refused(sample)) return refused;
  if (!has_monitors(call.gpu())) return NVML_ERROR_NOT_SUPPORTED;
  take(call.gpu(), sample);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample) {
  const GpuCall call(device);
  if (const auto refused = call.refused(sample)) return refused;
  if (!has_monitors(call.gpu()) || call.gpu().mig.current == 0) return NVML_ERROR_NOT_SUPPORTED;
  if (find_gpu_instance(call.gpu(), gpu_instance) == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  take(call.gpu(), sample);
  sample->of_instance = true;
  sample->busy = sample->memory = 0;
  for (const Process& process : call.gpu().processes) {
    if (process.pid == 0 || process.gpu_instance != gpu_instance) continue;
    sample->busy = std::min(100.0, sample->busy + process.sm_utilization);
    sample->memory = std::min(100.0, sample->memory + process.memory_utilization);
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t* asked) {
  if (const auto refused = enter_driver()) return refused;
  if (asked == nullptr || asked->sample1 == nullptr || asked->sample2 == nullptr)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (asked->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (asked->numMetrics == 0 || asked->numMetrics > NVML_GPM_METRIC_MAX) return NVML_ERROR_INVALID_ARGUMENT;
  if (!asked->sample1->taken || !asked->sample2->taken) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned int i = 0; i < asked->numMetrics; ++i) {
    nvmlGpmMetric_t* metric = &asked->metrics[i];
    metric->value = 0;
    metric->metricInfo = {};
    metric->nvmlReturn = compute(*asked->sample1, *asked->sample2, metric);
  }
  return NVML_SUCCESS;
}
