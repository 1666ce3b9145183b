#include "metrics/dcgm_page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/text.h"
#include "metrics/test_pods.h"
#include "metrics/test_promtool.h"

namespace gpulet::metrics {
namespace {

// The lines of a page with this prefix.
Sample one_gpu() {
  Sample sample;
  GpuSample gpu;
  gpu.index = 3;
  gpu.uuid = DeviceUuid("GPU-3");
  gpu.pci_bus_id = "00000000:1B:00.0";
  gpu.model = "NVIDIA H100 80GB HBM3";
  gpu.values = {{Field::kDriverVersion, "570.124.06"},
                {Field::kGpuTemp, std::uint64_t{41}},
                {Field::kPower, 70.25},
                {Field::kEnergy, std::uint64_t{12'345'678'901}},
                {Field::kGpuUtil, std::uint64_t{80}},
                {Field::kFbUsed, std::uint64_t{1000}},
                {Field::kFbFree, std::uint64_t{500}},
                {Field::kGraphicsActive, 0.79}};
  sample.gpus.push_back(gpu);
  return sample;
}

Sample mig_gpu() {
  Sample sample = one_gpu();
  auto& gpu = sample.gpus[0];
  gpu.mig = true;
  gpu.values.erase(Field::kGpuUtil);
  for (const unsigned id : {7u, 9u}) {
    InstanceSample instance{id, "1g.10gb", {{Field::kFbUsed, std::uint64_t{id}}}, {}, {}, {}};
    instance.devices.push_back({DeviceUuid("MIG-" + std::to_string(id)), 0, {}});
    gpu.instances.push_back(instance);
  }
  return sample;
}

PodShares held_by(const std::vector<PodShare>& pods) {
  PodShares shares;
  shares.pods = pods;
  return shares;
}

Exposition page_of(const Sample& sample, const Attribution& uses = {}, const PageOptions& options = {},
                   const Counters& counters = default_counters()) {
  Exposition page;
  add_dcgm_metrics(page, sample, counters, uses, options);
  return page;
}

const std::string kGpu3 =
    R"({gpu="3",UUID="GPU-3",pci_bus_id="00000000:1B:00.0",device="nvidia3",modelName="NVIDIA H100 80GB HBM3")";

TEST(DcgmPage, UnallocatedGpu) {
  PageOptions options;
  options.hostname = "node-1";
  const auto page = page_of(one_gpu(), {}, options);
  const std::string rest = R"(,Hostname="node-1",DCGM_FI_DRIVER_VERSION="570.124.06"})";
  EXPECT_EQ(page.text_format(),
            "# HELP DCGM_FI_DEV_FB_FREE Framebuffer memory free (in MiB).\n"
            "# TYPE DCGM_FI_DEV_FB_FREE gauge\n"
            "DCGM_FI_DEV_FB_FREE" +
                kGpu3 + rest +
                " 500\n"
                "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n"
                "# TYPE DCGM_FI_DEV_FB_USED gauge\n"
                "DCGM_FI_DEV_FB_USED" +
                kGpu3 + rest +
                " 1000\n"
                "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n"
                "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
                "DCGM_FI_DEV_GPU_TEMP" +
                kGpu3 + rest +
                " 41\n"
                "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n"
                "# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n"
                "DCGM_FI_DEV_GPU_UTIL" +
                kGpu3 + rest +
                " 80\n"
                "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).\n"
                "# TYPE DCGM_FI_DEV_POWER_USAGE gauge\n"
                "DCGM_FI_DEV_POWER_USAGE" +
                kGpu3 + rest +
                " 70.25\n"
                "# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).\n"
                "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter\n"
                "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" +
                kGpu3 + rest +
                " 12345678901\n"
                "# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.\n"
                "# TYPE DCGM_FI_DEV_XID_ERRORS gauge\n"
                "DCGM_FI_DEV_XID_ERRORS" +
                kGpu3 + rest.substr(0, rest.size() - 1) +
                R"(,err_code="0",err_msg="No Error"} 0)"
                "\n"
                "# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.\n"
                "# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge\n"
                "DCGM_FI_PROF_GR_ENGINE_ACTIVE" +
                kGpu3 + rest + " 0.79\n");
}

TEST(DcgmPage, HostAndModelLabelsAndOldNames) {
  PageOptions options;
  options.hostname = "node-1";
  options.host_label = HostLabel::kLower;
  options.replace_blanks = true;
  options.old_namespace = true;
  Attribution uses;
  uses.devices[DeviceUuid("GPU-3")] = held_by({{{kTrain, {"main"}, {}}, {}, 0}});
  EXPECT_EQ(lines(page_of(one_gpu(), uses, options), "DCGM_FI_DEV_GPU_TEMP")[0],
            R"(DCGM_FI_DEV_GPU_TEMP{gpu="3",uuid="GPU-3",pci_bus_id="00000000:1B:00.0",device="nvidia3",)"
            R"(modelName="NVIDIA-H100-80GB-HBM3",hostname="node-1",DCGM_FI_DRIVER_VERSION="570.124.06",)"
            R"(container_name="main",pod_name="train",pod_namespace="default"} 41)");
  options.host_label = HostLabel::kNone;
  EXPECT_EQ(page_of(one_gpu(), uses, options).text_format().find("node-1"), std::string::npos);
}

TEST(DcgmPage, EverySeriesHasTheHoldingPod) {
  Attribution uses;
  uses.devices[DeviceUuid("GPU-3")] = held_by({{{kTrain, {"main"}, {}}, mebibytes(900), 70}});
  uses.pods[kTrain] = {"uid-1", {{"app", "x"}, {"gpu", "hidden"}, {"pod", "hidden"}}};
  const auto page = page_of(one_gpu(), uses);
  const std::string wanted =
      kGpu3 +
      R"(,DCGM_FI_DRIVER_VERSION="570.124.06",app="x",container="main",namespace="default",pod="train")"
      R"(,pod_uid="uid-1")";
  for (const auto& line : lines(page, "DCGM_FI_DEV_GPU_"))
    EXPECT_NE(line.find(wanted), std::string::npos) << line;
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_XID_ERRORS").size(), 1u);
  EXPECT_NE(
      lines(page, "DCGM_FI_DEV_XID_ERRORS")[0].find(
          R"(app="x",container="main",err_code="0",err_msg="No Error",namespace="default",pod="train",pod_uid=)"),
      std::string::npos);
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_FB_USED"),
            std::vector<std::string>{"DCGM_FI_DEV_FB_USED" + wanted + "} 1000"})
      << "the device's, not its processes'";
}

TEST(DcgmPage, PodsHaveTheirOwnMemoryAndTime) {
  Attribution uses;
  uses.devices[DeviceUuid("GPU-3")] =
      held_by({{{kTrain, {"a", "b"}, {"0", "4"}}, Bytes{(600u << 20) + 5}, 50},
               {{kServe, {"main"}, {"1"}}, Bytes{}, 0}});
  const std::string text = R"(,DCGM_FI_DRIVER_VERSION="570.124.06")";
  const std::string train = R"(,namespace="default",pod="train"})";
  const std::string serve = R"(,container="main",namespace="prod",pod="serve"})";
  auto page = page_of(one_gpu(), uses);
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_FB_USED"),
            (std::vector<std::string>{"DCGM_FI_DEV_FB_USED" + kGpu3 + text + serve + " 0",
                                      "DCGM_FI_DEV_FB_USED" + kGpu3 + text + train + " 600",
                                      "DCGM_FI_DEV_FB_USED" + kGpu3 + text + "} 400"}));
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_GPU_UTIL"),
            (std::vector<std::string>{"DCGM_FI_DEV_GPU_UTIL" + kGpu3 + text + serve + " 0",
                                      "DCGM_FI_DEV_GPU_UTIL" + kGpu3 + text + train + " 50",
                                      "DCGM_FI_DEV_GPU_UTIL" + kGpu3 + text + "} 30"}));
  EXPECT_EQ(lines(page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
            (std::vector<std::string>{"DCGM_FI_PROF_GR_ENGINE_ACTIVE" + kGpu3 + text + serve + " 0",
                                      "DCGM_FI_PROF_GR_ENGINE_ACTIVE" + kGpu3 + text + train + " 0.49375",
                                      "DCGM_FI_PROF_GR_ENGINE_ACTIVE" + kGpu3 + text + "} 0.29625"}));
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_GPU_TEMP"),
            std::vector<std::string>{"DCGM_FI_DEV_GPU_TEMP" + kGpu3 + text + "} 41"});

  PageOptions options;
  options.virtual_gpus = true;
  page = page_of(one_gpu(), uses, options);
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_GPU_TEMP").size(), 3u);
  EXPECT_EQ(
      lines(page, "DCGM_FI_DEV_GPU_TEMP" + kGpu3 + text + R"(,namespace="default",pod="train",vgpu="4"} 41)")
          .size(),
      1u);
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_FB_USED").size(), 3u) << "its own, once";

  auto& shares = uses.devices[DeviceUuid("GPU-3")];
  shares.is_busy_known = false;
  EXPECT_EQ(lines(page_of(one_gpu(), uses), "DCGM_FI_DEV_GPU_UTIL").size(), 1u);
  EXPECT_EQ(lines(page_of(one_gpu(), uses), "DCGM_FI_PROF_GR_ENGINE_ACTIVE").size(), 1u);
  EXPECT_EQ(lines(page_of(one_gpu(), uses), "DCGM_FI_DEV_FB_USED").size(), 3u);
  shares.is_known = false;
  EXPECT_EQ(lines(page_of(one_gpu(), uses), "DCGM_FI_DEV_FB_USED").size(), 1u)
      << "the metric is absent, not zero";
}

TEST(DcgmPage, GpuInstancesWithTheirOwnAndTheGpusValues) {
  Attribution uses;
  uses.devices[DeviceUuid("MIG-9")] = held_by({{{kTrain, {"main"}, {}}, {}, 0}});
  const auto page = page_of(mig_gpu(), uses);
  const std::string text = R"(,DCGM_FI_DRIVER_VERSION="570.124.06")";
  const std::string seven = R"(,GPU_I_PROFILE="1g.10gb",GPU_I_ID="7")",
                    nine = R"(,GPU_I_PROFILE="1g.10gb",GPU_I_ID="9")";
  const std::string pod = R"(,container="main",namespace="default",pod="train"})";
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_FB_USED"),
            (std::vector<std::string>{"DCGM_FI_DEV_FB_USED" + kGpu3 + seven + text + "} 7",
                                      "DCGM_FI_DEV_FB_USED" + kGpu3 + nine + text + pod + " 9"}));
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_GPU_TEMP"),
            (std::vector<std::string>{"DCGM_FI_DEV_GPU_TEMP" + kGpu3 + seven + text + "} 41",
                                      "DCGM_FI_DEV_GPU_TEMP" + kGpu3 + nine + text + pod + " 41"}));
  EXPECT_TRUE(lines(page, "DCGM_FI_DEV_FB_FREE").empty()) << "the GPU's is not the instance's";
  EXPECT_TRUE(lines(page, "DCGM_FI_PROF_GR_ENGINE_ACTIVE").empty());
}

TEST(DcgmPage, TwoMigDevicesOfOneInstance) {
  auto sample = mig_gpu();
  sample.gpus[0].instances.resize(1);
  sample.gpus[0].instances[0].values[Field::kFbUsed] = std::uint64_t{100};
  sample.gpus[0].instances[0].devices.push_back({DeviceUuid("MIG-8"), 1, {}});
  Attribution uses;
  uses.devices[DeviceUuid("MIG-7")] = held_by({{{kTrain, {"main"}, {}}, mebibytes(10), 0}});
  uses.devices[DeviceUuid("MIG-8")] =
      held_by({{{kServe, {"main"}, {}}, mebibytes(20), 0}, {{kTrain, {"main"}, {}}, mebibytes(30), 0}});
  std::vector<std::string> values;
  for (const auto& line : lines(page_of(sample, uses), "DCGM_FI_DEV_FB_USED"))
    values.push_back(line.substr(line.rfind(' ') + 1));
  EXPECT_EQ(values, (std::vector<std::string>{"40", "20", "40"})) << "train, serve, nobody";
}

TEST(DcgmPage, EventsHaveTheirOwnLabels) {
  auto sample = one_gpu();
  sample.windows = {std::chrono::milliseconds(60'000), std::chrono::milliseconds(90'000)};
  sample.gpus[0].xid = {74, "an \"NVLink\" error"};
  sample.gpus[0].counts.xids = {{79, 2}, {13, 1}};
  sample.gpus[0].counts.clock_events = {{"power_cap", 3}};
  sample.gpus[0].peers = {{0, "OK"}, {1, "NotSupported"}};
  const auto counters = *parse_counters(
      "DCGM_FI_DEV_XID_ERRORS, gauge, x\nDCGM_EXP_XID_ERRORS_COUNT, gauge, x\n"
      "DCGM_EXP_CLOCK_EVENTS_COUNT, gauge, x\nDCGM_EXP_P2P_STATUS, gauge, x",
      "");
  const auto page = page_of(sample, {}, {}, counters);
  EXPECT_EQ(
      lines(page, "DCGM_"),
      (std::vector<std::string>{
          "DCGM_EXP_CLOCK_EVENTS_COUNT" + kGpu3 + R"(,clock_event="power_cap",window_size_in_ms="90000"} 3)",
          "DCGM_EXP_P2P_STATUS" + kGpu3 + R"(,link_status="NotSupported",peer_gpu="1"} 0)",
          "DCGM_EXP_P2P_STATUS" + kGpu3 + R"(,link_status="OK",peer_gpu="0"} 1)",
          "DCGM_EXP_XID_ERRORS_COUNT" + kGpu3 + R"(,window_size_in_ms="60000",xid="13"} 1)",
          "DCGM_EXP_XID_ERRORS_COUNT" + kGpu3 + R"(,window_size_in_ms="60000",xid="79"} 2)",
          "DCGM_FI_DEV_XID_ERRORS" + kGpu3 +
              R"(,err_code="74",err_msg="NVLINK Error",xid_description="an \"NVLink\" error"} 74)"}));
}

TEST(DcgmPage, UnresponsiveGpuAffectsOnlyItself) {
  auto sample = one_gpu();
  sample.gpus.push_back(sample.gpus[0]);
  sample.gpus[1].index = 4;
  sample.gpus[1].uuid = DeviceUuid("GPU-4");
  sample.gpus[0].error = Error(Code::kDeviceLost, "GPU is lost");
  const auto page = page_of(sample);
  EXPECT_EQ(lines(page, "DCGM_FI_DEV_GPU_TEMP").size(), 1u);
  EXPECT_EQ(page.text_format().find("GPU-3"), std::string::npos);
}

TEST(DcgmPage, FileTypesAndNumericLabels) {
  auto sample = one_gpu();
  sample.gpus[0].values[Field::kSmActive] = std::numeric_limits<double>::quiet_NaN();
  const auto counters = *parse_counters(
      "dcgm_gpu_temp, counter, Hot\nDCGM_FI_DEV_POWER_USAGE, label, W\nDCGM_FI_PROF_SM_ACTIVE, gauge, x", "");
  EXPECT_EQ(page_of(sample, {}, {}, counters).text_format(),
            "# HELP dcgm_gpu_temp Hot\n# TYPE dcgm_gpu_temp counter\n"
            "dcgm_gpu_temp" +
                kGpu3 +
                R"(,DCGM_FI_DEV_POWER_USAGE="70.25"} 41)"
                "\n");
}

TEST(DcgmPage, FieldsOfSingleLinks) {
  auto sample = one_gpu();
  sample.gpus[0].links = {
      {.index = 2, .remote = {}, .values = {{Field::kLinkBandwidth, std::uint64_t{6000}}}},
      {.index = 5, .remote = {}, .values = {{Field::kLinkTxBytes, 1.5}}}};
  const auto counters = *parse_counters(
      "DCGM_FI_DEV_NVLINK_BANDWIDTH_L2, counter, x\nDCGM_FI_DEV_NVLINK_BANDWIDTH_L5, counter, x\n"
      "DCGM_FI_PROF_NVLINK_L5_TX_BYTES, gauge, x\nDCGM_FI_DEV_NVLINK_BANDWIDTH_L7, counter, x\n",
      "");
  EXPECT_EQ(lines(page_of(sample, {}, {}, counters), "DCGM"),
            (std::vector<std::string>{"DCGM_FI_DEV_NVLINK_BANDWIDTH_L2" + kGpu3 + "} 6000",
                                      "DCGM_FI_PROF_NVLINK_L5_TX_BYTES" + kGpu3 + "} 1.5"}));
  auto mig = mig_gpu();
  mig.gpus[0].links = sample.gpus[0].links;
  EXPECT_EQ(lines(page_of(mig, {}, {}, counters), "DCGM_FI_DEV").size(), 2u) << "one for each GPU instance";
}

// The names are DCGM's: the checker reports only the known complaints about them.
TEST(DcgmPage, LinterComplainsOnlyAboutNames) {
  auto sample = one_gpu();
  Counters counters;
  for (const auto& field : fields()) {
    counters.all.push_back({field.field, field.type, std::string(field.name), std::string(field.help)});
    if (!sample.gpus[0].values.contains(field.field)) {
      sample.gpus[0].values[field.field] =
          field.type == Type::kLabel ? Value("x \\ \"y\"\n") : Value(std::uint64_t{1});
    }
  }
  sample.gpus[0].counts = {{{79, 2}}, {{"power_cap", 3}}};
  sample.gpus[0].peers = {{1, "OK"}};
  const auto page = page_of(sample, {}, {}, counters);
  std::set<std::string> shown;
  for (const auto& line : lines(page, "# TYPE ")) shown.insert(text::split(line, ' ')[2]);
  for (const auto& field : fields()) {
    EXPECT_EQ(shown.contains(std::string(field.name)), field.type != Type::kLabel) << field.name;
  }
  EXPECT_EQ(complaints(page.text_format()),
            (std::set<std::string>{"counter metrics should have \"_total\" suffix", kCapitals,
                                   "metric name should not include type 'counter'"}));
}

}  // namespace
}  // namespace gpulet::metrics
