// OpenCost finds in the page what its queries select. Source: opencost, modules/prometheus-source: the
// queries of metricsquerier.go (usage and devices of containers), gpudevicequerier.go and
// gpusaturationquerier.go. What it reads of other exporters is not here: kube_pod_container_resource_requests
// is kube-state-metrics', container_gpu_allocation and node_gpu_hourly_cost are OpenCost's own.
#include <gtest/gtest.h>

#include <regex>

#include "base/text.h"
#include "metrics/dcgm_page.h"
#include "metrics/test_pods.h"

namespace gpulet::metrics {
namespace {

const std::vector<std::string> kOfContainer = {"container", "pod", "namespace"};
const std::vector<std::string> kOfDevice = {"device", "modelName", "UUID"};

struct OpenCostQuery {
  const char* metric;
  bool has_container;             // it selects container!=""
  bool of_default_fields = true;  // else the counters file names it
};
constexpr OpenCostQuery kOpenCostQueries[] = {
    {"DCGM_FI_PROF_GR_ENGINE_ACTIVE", true},  // QueryGPUsUsageAvg, QueryGPUsUsageMax
    {"DCGM_FI_DEV_DEC_UTIL", true},           // QueryGPUInfo
    {"DCGM_FI_DEV_FB_USED", true},
    {"DCGM_FI_DEV_FB_FREE", true},
    {"DCGM_FI_DEV_XID_ERRORS", true},
    {"DCGM_FI_PROF_DRAM_ACTIVE", true},
    {"DCGM_FI_PROF_PCIE_TX_BYTES", true},
    {"DCGM_FI_PROF_PCIE_RX_BYTES", true},
    {"DCGM_FI_DEV_POWER_USAGE", false},
    {"DCGM_FI_DEV_GPU_TEMP", false},
    {"DCGM_FI_DEV_POWER_VIOLATION", true, false},
    {"DCGM_FI_DEV_THERMAL_VIOLATION", true, false},
    {"DCGM_FI_DEV_SYNC_BOOST_VIOLATION", true, false},
    {"DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", true, false},
    {"DCGM_FI_DEV_CLOCKS_EVENT_REASONS", true, false},
    {"DCGM_FI_PROF_SM_ACTIVE", true, false},
    {"DCGM_FI_PROF_SM_OCCUPANCY", true, false},
    {"DCGM_FI_PROF_NVLINK_TX_BYTES", true, false},
    {"DCGM_FI_PROF_NVLINK_RX_BYTES", true, false},
};

// A GPU with a value of each field.
Sample full_sample() {
  Sample sample;
  GpuSample gpu;
  gpu.uuid = DeviceUuid("GPU-0");
  gpu.pci_bus_id = "00000000:1B:00.0";
  gpu.model = "NVIDIA H100 80GB HBM3";
  for (const auto& field : fields()) {
    if (field.type != Type::kLabel) gpu.values[field.field] = std::uint64_t{1};
  }
  sample.gpus.push_back(gpu);
  return sample;
}

Counters all_counters() {
  std::string text;
  for (const auto& query : kOpenCostQueries) text += std::string(query.metric) + ", gauge, help\n";
  return *parse_counters(text, "all");
}

std::map<std::string, std::string> labels_of_line(const std::string& line) {
  std::map<std::string, std::string> labels;
  static const std::regex kLabel("([A-Za-z_]+)=\"([^\"]*)\"");
  for (std::sregex_iterator at(line.begin(), line.end(), kLabel), end; at != end; ++at)
    labels[(*at)[1]] = (*at)[2];
  return labels;
}

// The series of the metric that has these labels, not empty; nullptr for none.
std::string find_series(const Exposition& page, const OpenCostQuery& query) {
  for (const auto& line : lines(page, std::string(query.metric) + "{")) {
    const auto labels = labels_of_line(line);
    const auto has = [&](const std::vector<std::string>& names) {
      return std::ranges::all_of(names, [&](const auto& name) {
        const auto found = labels.find(name);
        return found != labels.end() && !found->second.empty();
      });
    };
    if (has(kOfDevice) && (!query.has_container || has(kOfContainer))) return line;
  }
  return {};
}

TEST(OpenCost, FindsTheSeriesOfItsQueries) {
  Attribution uses;
  uses.devices[DeviceUuid("GPU-0")].pods = {{{kTrain, {"main"}, {}}, mebibytes(1), 1}};
  Exposition by_default, named;
  add_dcgm_metrics(by_default, full_sample(), default_counters(), uses, {});
  add_dcgm_metrics(named, full_sample(), all_counters(), uses, {});
  for (const auto& query : kOpenCostQueries) {
    EXPECT_NE(find_series(named, query), "") << query.metric;
    EXPECT_EQ(find_series(by_default, query) != "", query.of_default_fields) << query.metric;
  }
}

TEST(OpenCost, FindsTheUsageOfEachPodOnASharedGpu) {
  Attribution uses;
  auto& shares = uses.devices[DeviceUuid("GPU-0")];
  shares.pods = {{{kServe, {"main"}, {"0"}}, mebibytes(1), 20},
                 {{kTrain, {"main"}, {"1"}}, mebibytes(1), 60}};
  auto sample = full_sample();
  sample.gpus[0].values[Field::kGpuUtil] = std::uint64_t{80};
  sample.gpus[0].values[Field::kGraphicsActive] = 0.5;
  for (const bool virtual_gpus : {false, true}) {
    PageOptions options;
    options.virtual_gpus = virtual_gpus;
    Exposition page;
    add_dcgm_metrics(page, sample, default_counters(), uses, options);
    std::map<std::string, std::string> usage;
    for (const auto& line : lines(page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE{"))
      usage[labels_of_line(line)["pod"]] = line.substr(line.rfind(' ') + 1);
    EXPECT_EQ(usage, (std::map<std::string, std::string>{{"", "0"}, {"serve", "0.125"}, {"train", "0.375"}}));
    // The devices of shared GPUs need virtualGPUs.
    EXPECT_EQ(find_series(page, {"DCGM_FI_DEV_DEC_UTIL", true}) != "", virtual_gpus);
  }
}

}  // namespace
}  // namespace gpulet::metrics
