// GPU performance monitoring (GPM). Real monitors count cycles between two samples; here a sample stores the
// current load, and a metric is the mean of its two samples.
#include <algorithm>
#include <limits>
#include <memory>

#include "sim/driver/call.h"
#include "sim/state/counters.h"
#include "sim/state/mig.h"

using namespace gpulet::sim;

// The target of a sample handle.
struct nvmlGpmSample_st {
  bool taken;
  bool of_instance;
  std::uint64_t when_ns;
  double busy;                             // percent of the time, of the GPU or the GPU instance
  double memory;                           // percent of the bandwidth
  double transmitted_kbps, received_kbps;  // PCIe
  LinkTraffic links[kMaxLinks];
  bool has_link[kMaxLinks];
};

namespace {

constexpr double kKilobyte = 1000;
constexpr double kMebibyte = 1 << 20;
constexpr double kNanosecondsInSecond = 1e9;

// The load of a training job: the share of busy time for each part of the GPU.
struct MetricShare {
  unsigned int metric;
  double share;
};
constexpr MetricShare kParts[] = {
    {NVML_GPM_METRIC_GRAPHICS_UTIL, 1},      {NVML_GPM_METRIC_SM_UTIL, 0.9},
    {NVML_GPM_METRIC_SM_OCCUPANCY, 0.5},     {NVML_GPM_METRIC_INTEGER_UTIL, 0.2},
    {NVML_GPM_METRIC_ANY_TENSOR_UTIL, 0.6},  {NVML_GPM_METRIC_DFMA_TENSOR_UTIL, 0},
    {NVML_GPM_METRIC_HMMA_TENSOR_UTIL, 0.6}, {NVML_GPM_METRIC_DMMA_TENSOR_UTIL, 0},
    {NVML_GPM_METRIC_IMMA_TENSOR_UTIL, 0},   {NVML_GPM_METRIC_FP64_UTIL, 0},
    {NVML_GPM_METRIC_FP32_UTIL, 0.25},       {NVML_GPM_METRIC_FP16_UTIL, 0.1},
};

// One of eight decoders and eight JPEG engines, or the optical flow engine.
bool is_video_engine(unsigned int metric) {
  return (metric >= NVML_GPM_METRIC_NVDEC_0_UTIL && metric <= NVML_GPM_METRIC_NVDEC_7_UTIL) ||
         (metric >= NVML_GPM_METRIC_NVJPG_0_UTIL && metric <= NVML_GPM_METRIC_NVJPG_7_UTIL) ||
         metric == NVML_GPM_METRIC_NVOFA_0_UTIL;
}

bool has_monitors(const Gpu& gpu) { return gpu.architecture >= NVML_DEVICE_ARCH_HOPPER; }

void take_sample(const Gpu& gpu, nvmlGpmSample_t sample) {
  *sample = {};
  sample->taken = true;
  sample->when_ns = monotonic_ns();
  sample->busy = gpu.utilization_gpu;
  sample->memory = gpu.utilization_memory;
  sample->transmitted_kbps = gpu.pcie_tx_kbps;
  sample->received_kbps = gpu.pcie_rx_kbps;
  for (std::size_t i = 0; i < kMaxLinks; ++i) {
    sample->links[i] = link_traffic(gpu, gpu.links[i], sample->when_ns);
    sample->has_link[i] = gpu.links[i].present != 0;
  }
}

double mean_share(double first, double second) { return (first + second) / 2; }

// Returns MiB/s from a counter of KiB.
double counter_rate(std::uint64_t first, std::uint64_t second, double seconds) {
  if (seconds <= 0 || second < first) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(second - first) / 1024 / seconds;
}

std::uint64_t total_kib(const nvmlGpmSample_st& sample, std::uint64_t LinkTraffic::* direction) {
  std::uint64_t sum = 0;
  for (const LinkTraffic& link : sample.links) sum += link.*direction;
  return sum;
}

// The rate of one link; false for other metrics. Receiving has the even ids.
bool link_metric(const nvmlGpmSample_st& first, const nvmlGpmSample_st& second, double seconds,
                 nvmlGpmMetric_t* metric, nvmlReturn_t* result) {
  constexpr unsigned int kFirstRange = 18;
  const unsigned int id = metric->metricId;
  unsigned int offset = 0;
  if (id >= NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC && id <= NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC) {
    offset = id - NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC;
  } else if (id >= NVML_GPM_METRIC_NVLINK_L18_RX_PER_SEC && id <= NVML_GPM_METRIC_NVLINK_L35_TX_PER_SEC) {
    offset = id - NVML_GPM_METRIC_NVLINK_L18_RX_PER_SEC + 2 * kFirstRange;
  } else {
    return false;
  }
  const unsigned int link = offset / 2;
  const auto direction = offset % 2 == 0 ? &LinkTraffic::received_kib : &LinkTraffic::transmitted_kib;
  *result = second.has_link[link] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
  if (second.has_link[link])
    metric->value = counter_rate(first.links[link].*direction, second.links[link].*direction, seconds);
  return true;
}

nvmlReturn_t compute_metric(const nvmlGpmSample_st& first, const nvmlGpmSample_st& second,
                            nvmlGpmMetric_t* metric) {
  const double seconds = second.when_ns < first.when_ns
                             ? 0
                             : static_cast<double>(second.when_ns - first.when_ns) / kNanosecondsInSecond;
  for (const MetricShare& part : kParts) {
    if (part.metric != metric->metricId) continue;
    metric->value = mean_share(first.busy, second.busy) * part.share;
    return NVML_SUCCESS;
  }
  if (metric->metricId == NVML_GPM_METRIC_DRAM_BW_UTIL) {
    metric->value = mean_share(first.memory, second.memory);
    return NVML_SUCCESS;
  }
  if (is_video_engine(metric->metricId)) return NVML_SUCCESS;  // idle
  // The bus and the links belong to the whole GPU.
  if (second.of_instance) return NVML_ERROR_NOT_SUPPORTED;
  if (nvmlReturn_t result{}; link_metric(first, second, seconds, metric, &result)) return result;
  switch (metric->metricId) {
    case NVML_GPM_METRIC_PCIE_TX_PER_SEC:
      metric->value = mean_share(first.transmitted_kbps, second.transmitted_kbps) * kKilobyte / kMebibyte;
      return NVML_SUCCESS;
    case NVML_GPM_METRIC_PCIE_RX_PER_SEC:
      metric->value = mean_share(first.received_kbps, second.received_kbps) * kKilobyte / kMebibyte;
      return NVML_SUCCESS;
    case NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC:
      metric->value = counter_rate(total_kib(first, &LinkTraffic::transmitted_kib),
                                   total_kib(second, &LinkTraffic::transmitted_kib), seconds);
      return NVML_SUCCESS;
    case NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC:
      metric->value = counter_rate(total_kib(first, &LinkTraffic::received_kib),
                                   total_kib(second, &LinkTraffic::received_kib), seconds);
      return NVML_SUCCESS;
    default:
      return NVML_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t* support) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(support)) return error;
  if (support->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  support->isSupportedDevice = has_monitors(call.gpu_state()) ? 1 : 0;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t* sample) {
  if (const auto error = enter_driver()) return error;
  if (sample == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *sample = std::make_unique<nvmlGpmSample_st>().release();
  return NVML_SUCCESS;
}

// Frees client memory, so it works without a driver.
nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
  if (sample == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const std::unique_ptr<nvmlGpmSample_st> owned(sample);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(sample)) return error;
  if (!has_monitors(call.gpu_state())) return NVML_ERROR_NOT_SUPPORTED;
  take_sample(call.gpu_state(), sample);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int gpu_instance, nvmlGpmSample_t sample) {
  const GpuCall call(device);
  if (const auto error = call.entry_error(sample)) return error;
  if (!has_monitors(call.gpu_state()) || call.gpu_state().mig.current == 0) return NVML_ERROR_NOT_SUPPORTED;
  if (find_gpu_instance(call.gpu_state(), gpu_instance) == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  take_sample(call.gpu_state(), sample);
  sample->of_instance = true;
  sample->busy = sample->memory = 0;
  for (const Process& process : call.gpu_state().processes) {
    if (process.pid == 0 || process.gpu_instance != gpu_instance) continue;
    sample->busy = std::min(100.0, sample->busy + process.sm_utilization);
    sample->memory = std::min(100.0, sample->memory + process.memory_utilization);
  }
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t* asked) {
  if (const auto error = enter_driver()) return error;
  if (asked == nullptr || asked->sample1 == nullptr || asked->sample2 == nullptr)
    return NVML_ERROR_INVALID_ARGUMENT;
  if (asked->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (asked->numMetrics == 0 || asked->numMetrics > NVML_GPM_METRIC_MAX) return NVML_ERROR_INVALID_ARGUMENT;
  if (!asked->sample1->taken || !asked->sample2->taken) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned int i = 0; i < asked->numMetrics; ++i) {
    nvmlGpmMetric_t* metric = &asked->metrics[i];
    metric->value = 0;
    metric->metricInfo = {};
    metric->nvmlReturn = compute_metric(*asked->sample1, *asked->sample2, metric);
  }
  return NVML_SUCCESS;
}
