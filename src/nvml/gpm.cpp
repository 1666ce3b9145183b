#include "nvml/gpm.h"

#include <cmath>

#include "nvml/library.h"

namespace gpulet::nvml {
namespace {

static_assert(static_cast<int>(GpmMetric::kAnyTensor) == NVML_GPM_METRIC_ANY_TENSOR_UTIL);
static_assert(static_cast<int>(GpmMetric::kImmaTensor) == NVML_GPM_METRIC_IMMA_TENSOR_UTIL);
static_assert(static_cast<int>(GpmMetric::kFp16) == NVML_GPM_METRIC_FP16_UTIL);
static_assert(static_cast<int>(GpmMetric::kPcieReceived) == NVML_GPM_METRIC_PCIE_RX_PER_SEC);
static_assert(static_cast<int>(GpmMetric::kDecoder0) == NVML_GPM_METRIC_NVDEC_0_UTIL);
static_assert(static_cast<int>(GpmMetric::kJpeg0) == NVML_GPM_METRIC_NVJPG_0_UTIL);
static_assert(static_cast<int>(GpmMetric::kOfa0) == NVML_GPM_METRIC_NVOFA_0_UTIL);
static_assert(static_cast<int>(GpmMetric::kNvLinkTransmitted) == NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC);
static_assert(static_cast<int>(link_metrics(17).transmitted) == NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC);
static_assert(static_cast<int>(link_metrics(18).received) == NVML_GPM_METRIC_NVLINK_L18_RX_PER_SEC);
static_assert(static_cast<int>(link_metrics(35).transmitted) == NVML_GPM_METRIC_NVLINK_L35_TX_PER_SEC);

nvmlGpmSample_t sample_of(const std::shared_ptr<void>& held) {
  return static_cast<nvmlGpmSample_t>(held.get());
}

}  // namespace

Result<bool> Gpm::is_supported() const {
  GPULET_TRY(session_.stale(gpu_));
  const Api& api = session_.library_->api();
  nvmlGpmSupport_t support{};
  support.version = NVML_GPM_SUPPORT_VERSION;
  GPULET_TRY(call_nvml(api, api.nvmlGpmQueryDeviceSupport, "nvmlGpmQueryDeviceSupport", raw(gpu_), &support));
  return support.isSupportedDevice != 0;
}

Result<GpmSample> Gpm::take_sample(std::optional<unsigned> gpu_instance) const {
  GPULET_TRY(session_.stale(gpu_));
  const auto library = session_.library_;
  const Api& api = library->api();
  nvmlGpmSample_t made = nullptr;
  GPULET_TRY(call_nvml(api, api.nvmlGpmSampleAlloc, "nvmlGpmSampleAlloc", &made));
  GpmSample sample;
  sample.raw_ = std::shared_ptr<void>(made, [library](void* held) {
    if (library->api().nvmlGpmSampleFree != nullptr)
      library->api().nvmlGpmSampleFree(static_cast<nvmlGpmSample_t>(held));
  });
  sample.generation_ = session_.generation();
  sample.gpu_instance_ = gpu_instance;
  if (gpu_instance) {
    GPULET_TRY(
        call_nvml(api, api.nvmlGpmMigSampleGet, "nvmlGpmMigSampleGet", raw(gpu_), *gpu_instance, made));
  } else {
    GPULET_TRY(call_nvml(api, api.nvmlGpmSampleGet, "nvmlGpmSampleGet", raw(gpu_), made));
  }
  return sample;
}

Result<std::map<GpmMetric, double>> Gpm::compute_metrics(const GpmSample& earlier, const GpmSample& later,
                                                         const std::set<GpmMetric>& metrics) const {
  GPULET_TRY(session_.stale({gpu_.raw, earlier.generation_}));
  GPULET_TRY(session_.stale({gpu_.raw, later.generation_}));
  if (earlier.gpu_instance_ != later.gpu_instance_)
    return fail(Code::kInvalidArgument, "the samples are of different GPU instances");
  const Api& api = session_.library_->api();
  if (metrics.empty()) return std::map<GpmMetric, double>();
  // About 50 KB: too much for a thread's stack.
  const auto request = std::make_unique<nvmlGpmMetricsGet_t>();
  request->version = NVML_GPM_METRICS_GET_VERSION;
  request->sample1 = sample_of(earlier.raw_);
  request->sample2 = sample_of(later.raw_);
  for (const GpmMetric metric : metrics)
    request->metrics[request->numMetrics++].metricId = static_cast<unsigned>(metric);
  GPULET_TRY(call_nvml(api, api.nvmlGpmMetricsGet, "nvmlGpmMetricsGet", request.get()));
  std::map<GpmMetric, double> found;
  for (unsigned i = 0; i < request->numMetrics; ++i) {
    const auto& metric = request->metrics[i];
    if (metric.nvmlReturn != NVML_SUCCESS || !std::isfinite(metric.value)) continue;
    found[static_cast<GpmMetric>(metric.metricId)] = metric.value;
  }
  return found;
}

}  // namespace gpulet::nvml
