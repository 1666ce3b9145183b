#include "metrics/gpulet_page.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/text.h"
#include "health/state/test_feed.h"
#include "metrics/test_pods.h"
#include "metrics/test_promtool.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kGpu("GPU-0");
const ResourceName kResource("nvidia.com/gpu");

// Checks that every metric of a page is valid and documented.
void expect_right(const Exposition& page) {
  auto problems = complaints(page.text_format());
  problems.erase(kCapitals);
  EXPECT_EQ(problems, std::set<std::string>());
  const auto docs = read_file("docs/metrics.md").value_or("");
  for (const auto& line : lines(page.text_format(), "# TYPE ")) {
    const auto words = text::split(line, ' ');
    const auto at = docs.find("- `" + words[2] + "`: ");
    ASSERT_NE(at, std::string::npos) << line;
    const auto documented = docs.substr(at, docs.find('\n', at) - at);
    EXPECT_NE(documented.find(" [" + words[3]), std::string::npos) << documented;
  }
}

TEST(OwnPage, Forecasts) {
  auto snapshot = health::two_gpu_snapshot();
  snapshot.gpus[0].model = "NVIDIA H100";
  GpuForecast expected;
  expected.gpu = {{{10.04, 20}, {30, 20}, {95.55, 20}}};
  expected.pods[kServe] = {{{10.04, 20}, {30, 20}, {95.55, 20}}};
  Exposition page;
  add_forecast_metrics(page, snapshot, {{kGpu, expected}, {DeviceUuid("GPU-gone"), expected}});
  expect_right(page);
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H100",)";
  EXPECT_EQ(
      lines(page.text_format(), "gpulet_gpu_utilization"),
      (std::vector<std::string>{"gpulet_gpu_utilization_forecast_percent" + gpu + R"(horizon="15m"} 10)",
                                "gpulet_gpu_utilization_forecast_percent" + gpu + R"(horizon="1h"} 30)",
                                "gpulet_gpu_utilization_forecast_percent" + gpu + R"(horizon="3h"} 95.6)"}));
  EXPECT_EQ(lines(page.text_format(), "gpulet_gpu_memory").size(), 3U);
  EXPECT_EQ(lines(page.text_format(), "gpulet_pod_gpu_utilization").back(),
            "gpulet_pod_gpu_utilization_forecast_percent" + gpu +
                R"(namespace="prod",pod="serve",horizon="3h"} 95.6)");
}

TEST(OwnPage, NvLinks) {
  auto snapshot = health::two_gpu_snapshot();
  snapshot.gpus.resize(1);
  snapshot.gpus[0].model = "NVIDIA H100";
  Sample sample;
  sample.gpus.resize(2);
  sample.gpus[0].uuid = kGpu;
  sample.gpus[0].links = {{.index = 0,
                           .remote = "00000000:07:00.0",
                           .up = true,
                           .transmitted = Bytes{2048},
                           .received = Bytes{1024},
                           .errors = {{"crc", 3}, {"replay", 0}}},
                          {.index = 4, .remote = "", .up = false},
                          {.index = 5, .remote = "switch"}};
  sample.gpus[1].uuid = DeviceUuid("GPU-gone");
  sample.gpus[1].links = sample.gpus[0].links;
  Exposition page;
  add_link_metrics(page, snapshot, sample);
  expect_right(page);
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H100",)";
  const std::string first = gpu + R"(link="0",remote="00000000:07:00.0")";
  EXPECT_EQ(lines(page, "gpulet_"),
            (std::vector<std::string>{"gpulet_nvlink_errors_total" + first + R"(,kind="crc"} 3)",
                                      "gpulet_nvlink_errors_total" + first + R"(,kind="replay"} 0)",
                                      "gpulet_nvlink_received_bytes_total" + first + "} 1024",
                                      "gpulet_nvlink_transmitted_bytes_total" + first + "} 2048",
                                      "gpulet_nvlink_up" + first + "} 1",
                                      "gpulet_nvlink_up" + gpu + R"(link="4",remote=""} 0)"}));
}

TEST(OwnPage, Preflights) {
  auto snapshot = health::two_gpu_snapshot();
  snapshot.gpus[0].model = "NVIDIA H100";
  const std::vector<GpuPreflight> preflights = {
      {kGpu,
       std::chrono::milliseconds(1500),
       {{"all", "", "slow"}, {"peer-copy", "GPU-1", "slow", 9'000'000'000}}},
      {DeviceUuid("GPU-gone"), {}, {{"all", "", "passed"}}}};
  Exposition page;
  add_preflight_metrics(page, snapshot, preflights);
  expect_right(page);
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H100")";
  EXPECT_EQ(
      lines(page.text_format(), "gpulet_gpu_preflight"),
      (std::vector<std::string>{
          "gpulet_gpu_preflight_age_seconds" + gpu + "} 1.5",
          "gpulet_gpu_preflight_copy_bytes_per_second" + gpu +
              R"(,check="peer-copy",peer="GPU-1"} 9000000000)",
          "gpulet_gpu_preflight_result" + gpu + R"(,check="all",peer="",result="slow"} 1)",
          "gpulet_gpu_preflight_result" + gpu + R"(,check="peer-copy",peer="GPU-1",result="slow"} 1)"}));
}

TEST(OwnPage, PowerLimits) {
  auto snapshot = health::two_gpu_snapshot();
  snapshot.gpus.resize(1);
  snapshot.gpus[0].model = "NVIDIA H100";
  const std::vector<GpuPowerLimit> limits = {{kGpu, MilliWatts{349'500}, "schedule", true},
                                             {DeviceUuid("GPU-gone"), MilliWatts{1}, "rule", false}};
  Exposition page;
  add_power_metrics(page, snapshot, limits);
  expect_right(page);
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H100")";
  EXPECT_EQ(lines(page.text_format(), "gpulet_gpu_power"),
            (std::vector<std::string>{"gpulet_gpu_power_limit_watts" + gpu + R"(,source="schedule"} 349.5)",
                                      "gpulet_gpu_power_problem" + gpu + "} 1"}));
}

TEST(OwnPage, MemoryLimits) {
  auto snapshot = health::two_gpu_snapshot();
  snapshot.gpus.resize(1);
  snapshot.gpus[0].model = "NVIDIA H100";
  const MemoryAuditStats stats{.containers = {{kGpu, kServe, "main", Bytes{300}, Bytes{200}, "audited"},
                                              {kGpu, kTrain, "main", Bytes{400}, std::nullopt},
                                              {kGpu, kServe, "side", Bytes{}, std::nullopt, "mps"},
                                              {DeviceUuid("GPU-gone"), kTrain, "main", Bytes{400}, Bytes{1}}},
                               .unlisted = {{kGpu, Bytes{7}}},
                               .counts = {.warned = 4, .killed = 3, .evicted = 2, .failed = 1}};
  Exposition page;
  add_memory_audit_metrics(page, snapshot, stats);
  expect_right(page);
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H100")";
  const std::string serve = gpu + R"(,namespace="prod",pod="serve",container="main"} )";
  EXPECT_EQ(lines(page.text_format(), "gpulet_container_gpu_memory_limit_bytes"),
            (std::vector<std::string>{"gpulet_container_gpu_memory_limit_bytes" + gpu + ",namespace=\"" +
                                          kTrain.name_space + "\",pod=\"" + kTrain.name +
                                          R"(",container="main"} 400)",
                                      "gpulet_container_gpu_memory_limit_bytes" + serve + "300"}));
  EXPECT_EQ(
      lines(page.text_format(), "gpulet_container_gpu_memory_limit_grade"),
      (std::vector<std::string>{"gpulet_container_gpu_memory_limit_grade" + gpu +
                                    R"(,namespace="prod",pod="serve",container="main",grade="audited"} 1)",
                                "gpulet_container_gpu_memory_limit_grade" + gpu +
                                    R"(,namespace="prod",pod="serve",container="side",grade="mps"} 1)"}))
      << "MPS limits the processes of side, and none of them together";
  EXPECT_EQ(lines(page.text_format(), "gpulet_container_gpu_memory_used"),
            (std::vector<std::string>{"gpulet_container_gpu_memory_used_bytes" + serve + "200"}));
  EXPECT_EQ(lines(page.text_format(), "gpulet_gpu_unlisted"),
            (std::vector<std::string>{"gpulet_gpu_unlisted_memory_bytes" + gpu + "} 7"}));
  EXPECT_EQ(lines(page.text_format(), "gpulet_memory_limit_exceeded"),
            (std::vector<std::string>{R"(gpulet_memory_limit_exceeded_total{action="evict"} 2)",
                                      R"(gpulet_memory_limit_exceeded_total{action="failed"} 1)",
                                      R"(gpulet_memory_limit_exceeded_total{action="kill"} 3)",
                                      R"(gpulet_memory_limit_exceeded_total{action="warn"} 4)"}));
}

TEST(OwnPage, SharedGpu) {
  auto snapshot = health::two_gpu_snapshot();
  snapshot.gpus.resize(1);
  snapshot.gpus[0].model = "NVIDIA H100";
  Holders holders;
  holders[kGpu] = {{kServe, {"main"}, {"1"}, {{kResource, "main", "1"}}},
                   {kTrain, {"a", "b"}, {"0", "2"}, {{kResource, "a", "0"}, {kResource, "b", "2"}}}};
  PodShares shares;
  shares.pods = {{holders[kGpu][0], Bytes{100}, 20}, {holders[kGpu][1], Bytes{200}, 60}};
  shares.unattributed_memory = Bytes{50};
  shares.unattributed_busy = 20;
  Attribution uses;
  uses.devices[kGpu] = shares;
  UsageAccounting accounts;
  accounts.add_usage(kGpu, {1000, 500ms}, shares, {1s, true, 1, {{kServe, 0.25}, {kTrain, 0.5}}});
  Exposition page;
  add_device_metrics(page, snapshot, holders, uses, accounts);
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="NVIDIA H100",)";
  const std::string train = R"(namespace="default",pod="train")", serve = R"(namespace="prod",pod="serve")",
                    nobody = R"(namespace="",pod="")";
  const auto series = [&](const std::string& name, const std::string& rest) { return name + gpu + rest; };
  EXPECT_EQ(
      lines(page.text_format(), "gpulet_"),
      (std::vector<std::string>{series("gpulet_device_allocated", R"(resource="nvidia.com/gpu",share="0",)" +
                                                                      train + R"(,container="a"} 1)"),
                                series("gpulet_device_allocated", R"(resource="nvidia.com/gpu",share="1",)" +
                                                                      serve + R"(,container="main"} 1)"),
                                series("gpulet_device_allocated", R"(resource="nvidia.com/gpu",share="2",)" +
                                                                      train + R"(,container="b"} 1)"),
                                series("gpulet_pod_gpu_busy_seconds_total", nobody + "} 0.1"),
                                series("gpulet_pod_gpu_busy_seconds_total", train + "} 0.3"),
                                series("gpulet_pod_gpu_busy_seconds_total", serve + "} 0.1"),
                                series("gpulet_pod_gpu_energy_joules_total", nobody + "} 0.2"),
                                series("gpulet_pod_gpu_energy_joules_total", train + "} 0.6"),
                                series("gpulet_pod_gpu_energy_joules_total", serve + "} 0.2"),
                                series("gpulet_pod_gpu_held_seconds_total", train + "} 0.5"),
                                series("gpulet_pod_gpu_held_seconds_total", serve + "} 0.25"),
                                series("gpulet_pod_gpu_idle_seconds_total", train + "} 0.2"),
                                series("gpulet_pod_gpu_idle_seconds_total", serve + "} 0.15"),
                                series("gpulet_pod_gpu_memory_bytes", nobody + "} 50"),
                                series("gpulet_pod_gpu_memory_bytes", train + "} 200"),
                                series("gpulet_pod_gpu_memory_bytes", serve + "} 100")}));
  expect_right(page);
}

TEST(OwnPage, Namespaces) {
  UsageAccounting accounts;
  PodShares shares;
  shares.pods = {{{kServe, {"main"}, {}}, {}, 60}};
  shares.unattributed_busy = 20;
  accounts.add_usage(kGpu, {1000, 800ms}, shares, {2s, true, 1, {{kServe, 1.0}}});
  accounts.add_usage(kGpu, {0, 0ms}, {}, {});
  Exposition page;
  add_namespace_metrics(page, accounts);
  EXPECT_EQ(lines(page.text_format(), "gpulet_"),
            (std::vector<std::string>{R"(gpulet_namespace_gpu_busy_seconds_total{namespace=""} 0.2)",
                                      R"(gpulet_namespace_gpu_busy_seconds_total{namespace="prod"} 0.6)",
                                      R"(gpulet_namespace_gpu_energy_joules_total{namespace=""} 0.25)",
                                      R"(gpulet_namespace_gpu_energy_joules_total{namespace="prod"} 0.75)",
                                      R"(gpulet_namespace_gpu_held_seconds_total{namespace="prod"} 2)",
                                      R"(gpulet_namespace_gpu_idle_seconds_total{namespace="prod"} 1.4)"}))
      << "the Pod has ended";
  expect_right(page);
}

TEST(OwnPage, MigDevices) {
  auto snapshot = health::two_gpu_snapshot();
  auto& migs = snapshot.gpus[1].mig_devices;
  for (std::size_t i = 0; i < migs.size(); ++i) {
    migs[i].uuid = DeviceUuid("MIG-" + std::to_string(i));
    migs[i].profile = migs[i].gpu_instance == 1 ? "1c.2g.20gb" : "3g.40gb";
    migs[i].placement_start = i < 2 ? 0 : 4;
    migs[i].placement_size = i < 2 ? 2 : 4;
  }
  Exposition page;
  UsageAccounting accounts;
  accounts.add_usage(migs[2].uuid, {0, 500ms}, {});
  accounts.add_usage(DeviceUuid("GPU-1"), {700, 0ms}, {});
  add_device_metrics(page, snapshot, {}, {}, accounts);
  const std::string gpu = R"({gpu="1",UUID="GPU-1",device="nvidia1",modelName="",)";
  EXPECT_EQ(lines(page.text_format(), "gpulet_"),
            (std::vector<std::string>{
                "gpulet_mig_instance" + gpu +
                    R"(GPU_I_PROFILE="2g.20gb",GPU_I_ID="1",GPU_C_ID="0",start="0",size="2"} 1)",
                "gpulet_mig_instance" + gpu +
                    R"(GPU_I_PROFILE="2g.20gb",GPU_I_ID="1",GPU_C_ID="1",start="0",size="2"} 1)",
                "gpulet_mig_instance" + gpu + R"(GPU_I_PROFILE="3g.40gb",GPU_I_ID="2",start="4",size="4"} 1)",
                "gpulet_pod_gpu_busy_seconds_total" + gpu +
                    R"(GPU_I_PROFILE="3g.40gb",GPU_I_ID="2",namespace="",pod=""} 0.5)",
                "gpulet_pod_gpu_energy_joules_total" + gpu + R"(namespace="",pod=""} 0.7)"}))
      << "the GPU has energy, its parts have time";
  expect_right(page);
}

TEST(OwnPage, DeviceStates) {
  health::HealthFeed feed;
  feed.add_xid({kGpu}, 95);
  feed.pass_time(10s);
  const auto page_of = [&] {
    Exposition page;
    add_health_metrics(page, health::build_health_view(feed.machine, feed.there, {feed.now, {}}), feed.there);
    return page;
  };
  const auto page = page_of();
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="")";
  EXPECT_EQ(lines(page.text_format(), "gpulet_device_state" + gpu),
            std::vector<std::string>{"gpulet_device_state" + gpu + R"(,state="quarantined"} 1)"});
  EXPECT_EQ(lines(page.text_format(), "gpulet_device_offered" + gpu),
            std::vector<std::string>{"gpulet_device_offered" + gpu + "} 0"});
  EXPECT_EQ(lines(page.text_format(), "gpulet_device_faults"),
            std::vector<std::string>{"gpulet_device_faults" + gpu + R"(,class="xid-reset"} 1)"});
  EXPECT_EQ(lines(page.text_format(), "gpulet_device_quarantine_seconds"),
            std::vector<std::string>{"gpulet_device_quarantine_seconds" + gpu + "} 10"});
  EXPECT_EQ(lines(page.text_format(), "gpulet_device_state").size(), 5u) << "GPUs and MIG devices";
  EXPECT_EQ(lines(page.text_format(), R"(gpulet_device_offered{gpu="1")").size(), 4u);
  expect_right(page);
}

TEST(OwnPage, AnExcludedGpuIsNotOfferedAndNotInQuarantine) {
  health::HealthFeed feed;
  feed.pass_time(10s);
  auto view = health::build_health_view(feed.machine, feed.there, {feed.now, {}});
  for (auto& device : view.devices) {
    if (device.scope.gpu == kGpu) device.excluded = "is excluded by the rule at x.yaml:3:5";
  }
  Exposition page;
  add_health_metrics(page, view, feed.there);
  const std::string gpu = R"({gpu="0",UUID="GPU-0",device="nvidia0",modelName="")";
  EXPECT_EQ(lines(page.text_format(), "gpulet_device_offered" + gpu),
            std::vector<std::string>{"gpulet_device_offered" + gpu + "} 0"});
  EXPECT_TRUE(lines(page.text_format(), "gpulet_device_quarantine_seconds").empty());
  expect_right(page);
}

TEST(OwnPage, AgentMetrics) {
  AgentStats numbers{.driver_calls = 7,
                     .driver_time = 1500ms,
                     .driver_hanging = 1,
                     .driver_released = true,
                     .nvml_errors = {{"nvmlDeviceGetMemoryInfo", "NO_PERMISSION", 3}},
                     .snapshot_age = 2s,
                     .pod_resources_age = 30s,
                     .pod_resources_errors = 4,
                     .pod_resources_time = 20ms,
                     .snapshot_generation = 5,
                     .pods_evicted = 2,
                     .rejected_pods_deleted = 3,
                     .containers_cut_off = 2,
                     .permissions_missing = 0,
                     .kubelet_calls = {{"nvidia.com/gpu", "Allocate", 3, 1, 2ms}},
                     .placement_scores = {{"nvidia.com/gpu", 18}},
                     .host_engine_connected = false};
  Exposition page;
  add_agent_metrics(page, numbers);
  EXPECT_EQ(
      lines(page.text_format(), "gpulet_"),
      (std::vector<std::string>{
          "gpulet_containers_without_device_access 2", "gpulet_driver_call_seconds_total 1.5",
          "gpulet_driver_calls_hanging 1", "gpulet_driver_calls_total 7", "gpulet_driver_released 1",
          "gpulet_host_engine_connected 0",
          R"(gpulet_kubelet_call_seconds_total{resource="nvidia.com/gpu",call="Allocate"} 0.002)",
          R"(gpulet_kubelet_calls_total{resource="nvidia.com/gpu",call="Allocate",result="answered"} 3)",
          R"(gpulet_kubelet_calls_total{resource="nvidia.com/gpu",call="Allocate",result="refused"} 1)",
          R"(gpulet_nvml_errors_total{function="nvmlDeviceGetMemoryInfo",code="NO_PERMISSION"} 3)",
          R"(gpulet_placement_score{resource="nvidia.com/gpu"} 18)", "gpulet_pod_resources_age_seconds 30",
          "gpulet_pod_resources_errors_total 4", "gpulet_pod_resources_seconds 0.02",
          "gpulet_pods_moved_total 2", "gpulet_rejected_pods_deleted_total 3", "gpulet_rights_missing 0",
          "gpulet_snapshot_age_seconds 2", "gpulet_snapshot_generation 5"}));
  numbers.sample_age = 1s;
  add_agent_metrics(page, numbers);
  expect_right(page);
}

TEST(OwnPage, MigReconfigurations) {
  AgentStats numbers;
  Exposition page;
  add_agent_metrics(page, numbers);
  EXPECT_TRUE(lines(page.text_format(), "gpulet_mig_").empty()) << "of nodes that cut on demand only";
  numbers.mig_reconfigurations = MigReconfigurations{.for_demand = 3, .returned = 2};
  Exposition cut;
  add_agent_metrics(cut, numbers);
  EXPECT_EQ(lines(cut.text_format(), "gpulet_mig_"),
            (std::vector<std::string>{R"(gpulet_mig_reconfigurations_total{reason="demand"} 3)",
                                      R"(gpulet_mig_reconfigurations_total{reason="return"} 2)"}));
}

TEST(OwnPage, ClaimMetrics) {
  const AgentStats numbers{
      .claims = ClaimStats{
          .driver = "gpu.nvidia.com",
          .node = "node-1",
          .duration_bounds = {0.05, 0.1},
          .prepare = {.in_flight = 2, .durations = {3, 0, 1}, .time = 40s, .errors = {{"device_lost", 2}}},
          .unprepare = {.durations = {0, 0, 0}},
          .prepared_claims = 3,
          .prepared_devices = {{"gpu", 4}, {"mig", 0}}}};
  Exposition page;
  add_agent_metrics(page, numbers);
  EXPECT_EQ(lines(page.text_format(), "gpulet_prepared"),
            std::vector<std::string>{"gpulet_prepared_claims 3"});
  const auto labels = [](const std::string& operation) {
    return R"({driver="gpu.nvidia.com",operation=")" + operation + "\"";
  };
  const std::string prepare = labels("prepare"), unprepare = labels("unprepare");
  const std::string seconds = "nvidia_dra_request_duration_seconds";
  EXPECT_EQ(
      lines(page.text_format(), "nvidia_dra_"),
      (std::vector<std::string>{
          R"(nvidia_dra_node_prepare_errors_total{driver="gpu.nvidia.com",error_type="device_lost"} 2)",
          R"(nvidia_dra_prepared_devices{node="node-1",driver="gpu.nvidia.com",device_type="gpu"} 4)",
          R"(nvidia_dra_prepared_devices{node="node-1",driver="gpu.nvidia.com",device_type="mig"} 0)",
          seconds + "_bucket" + prepare + R"(,le="0.05"} 3)",
          seconds + "_bucket" + prepare + R"(,le="0.1"} 3)",
          seconds + "_bucket" + prepare + R"(,le="+Inf"} 4)", seconds + "_sum" + prepare + "} 40",
          seconds + "_count" + prepare + "} 4", seconds + "_bucket" + unprepare + R"(,le="0.05"} 0)",
          seconds + "_bucket" + unprepare + R"(,le="0.1"} 0)",
          seconds + "_bucket" + unprepare + R"(,le="+Inf"} 0)", seconds + "_sum" + unprepare + "} 0",
          seconds + "_count" + unprepare + "} 0", "nvidia_dra_requests_inflight" + prepare + "} 2",
          "nvidia_dra_requests_inflight" + unprepare + "} 0", "nvidia_dra_requests_total" + prepare + "} 4",
          "nvidia_dra_requests_total" + unprepare + "} 0"}));
  expect_right(page);
}

}  // namespace
}  // namespace gpulet::metrics
