#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/commands/commands.h"

namespace gpulet::cli {
namespace {

using inventory::Snapshot;

// Two GPUs: one with a MIG device in node 0, one lost, of which only its index is known.
Snapshot two_gpu_node() {
  Snapshot snapshot;
  snapshot.driver = {"570.124.06", 12080};
  snapshot.gpus.resize(2);
  auto& gpu = snapshot.gpus[0];
  gpu.uuid = DeviceUuid("GPU-aaaa");
  gpu.model = "NVIDIA H100 80GB HBM3";
  gpu.brand = "NVIDIA";
  gpu.architecture = "hopper";
  gpu.compute_major = 9;
  gpu.memory = mebibytes(81559);
  gpu.pci = {0, 0x1b, 0, 0};
  gpu.numa_node = 0;
  gpu.serial = "1650";
  gpu.mig_capable = gpu.mig_enabled = true;
  gpu.mig_pending = false;
  for (unsigned i = 0; i < 2; ++i) gpu.nvlinks.push_back({i, inventory::NvLinkRemote::kSwitch, {0, 7, 0, 0}});
  gpu.fabric = inventory::Fabric{"01234567", 3};
  inventory::MigDevice mig;
  mig.index = 0;
  mig.uuid = DeviceUuid("MIG-bbbb");
  mig.profile = "1g.10gb";
  mig.gpu_instance = 7;
  mig.memory = mebibytes(9856);
  mig.placement_start = 2;
  mig.placement_size = 1;
  gpu.mig_devices = {mig};
  snapshot.gpus[1].index = 1;
  snapshot.gpus[1].unreadable = Error(Code::kDeviceLost, "nvmlDeviceGetHandleByIndex_v2: GPU is lost");
  snapshot.pcie.resize(4);
  return snapshot;
}

TEST(List, ShowsWhatWaitsForItsPreflight) {
  auto snapshot = two_gpu_node();
  mark_waiting_preflights(nlohmann::json::parse(R"({"gpus": [
    {"uuid": "GPU-aaaa", "preflight": {"result": "waiting", "detail": ""}}, {"uuid": "GPU-x"}, 7]})"),
                          snapshot);
  EXPECT_NE(list_report(snapshot, "table").find("\nGPU 0 waits for its preflight\n"), std::string::npos);
  for (const char* other : {"null", R"({"gpus": 3})", R"({"gpus": [
    {"uuid": "GPU-aaaa", "preflight": {"result": "passed"}}]})"}) {
    snapshot = two_gpu_node();
    mark_waiting_preflights(nlohmann::json::parse(other), snapshot);
    EXPECT_EQ(snapshot.gpus[0].excluded, "") << other;
  }
}

TEST(List, ShowsWhatARuleExcludes) {
  auto snapshot = two_gpu_node();
  snapshot.gpus[0].excluded = "is excluded by the rule at x.yaml:3:5";
  const auto table = list_report(snapshot, "table");
  EXPECT_NE(table.find("excluded     GPU-aaaa"), std::string::npos) << table;
  EXPECT_NE(table.find("excluded     MIG-bbbb"), std::string::npos) << table;
  EXPECT_NE(table.find("\nGPU 0 is excluded by the rule at x.yaml:3:5\n"), std::string::npos) << table;
  const auto json = nlohmann::json::parse(list_report(snapshot, "json"));
  EXPECT_EQ(json["gpus"][0]["excluded"], "is excluded by the rule at x.yaml:3:5");
  EXPECT_FALSE(json["gpus"][1].contains("excluded"));
}

TEST(List, ShowsTheGradesOfMemoryLimits) {
  const auto container = [](const char* pod, const char* grade, std::vector<std::string> reasons) {
    return agent::MemoryLimitStatus::Container{.gpu = DeviceUuid("GPU-aaaa"),
                                               .pod = {"team", pod},
                                               .container = "main",
                                               .limit = Bytes{8},
                                               .grade = grade,
                                               .reasons = std::move(reasons)};
  };
  agent::MemoryLimitStatus limit{
      .grade = "audited",
      .reasons = {"no driver"},
      .containers = {container("a", "audited", {"no driver"}), container("b", "none", {"is privileged"}),
                     container("c", "audited", {})}};
  limit.containers[2].limit = {};  // MPS limits each of its processes
  const auto table = list_report(two_gpu_node(), "table", {}, {}, limit);
  EXPECT_TRUE(
      table.ends_with("memory limits of shared GPUs: audited (no driver)\n"
                      "memory limit of container main of Pod team/b: none (is privileged)\n"))
      << table;
  const auto json = nlohmann::json::parse(list_report(two_gpu_node(), "json", {}, {}, limit));
  EXPECT_EQ(json["memoryLimit"]["grade"], "audited");
  EXPECT_EQ(json["memoryLimit"]["containers"][1], (nlohmann::json{{"namespace", "team"},
                                                                  {"pod", "b"},
                                                                  {"container", "main"},
                                                                  {"gpu", "GPU-aaaa"},
                                                                  {"limitBytes", 8},
                                                                  {"grade", "none"},
                                                                  {"reasons", {"is privileged"}}}));
  EXPECT_FALSE(json["memoryLimit"]["containers"][2].contains("limitBytes"));
  limit.grade.clear();  // only a claim shares a GPU
  limit.reasons.clear();
  const auto of_claims = list_report(two_gpu_node(), "table", {}, {}, limit);
  EXPECT_EQ(of_claims.find("memory limits of"), std::string::npos) << of_claims;
  EXPECT_NE(of_claims.find("memory limit of container main of Pod team/c: audited\n"), std::string::npos);
  EXPECT_FALSE(
      nlohmann::json::parse(list_report(two_gpu_node(), "json", {}, {}, limit))["memoryLimit"].contains(
          "grade"));
  EXPECT_FALSE(nlohmann::json::parse(list_report(two_gpu_node(), "json")).contains("memoryLimit"));
}

TEST(List, ShowsWhatMovesAndClaimsWaitFor) {
  using namespace std::chrono_literals;
  const WallTime now = *parse_wall_time("2026-01-31T12:05:00.000Z");
  const agent::ClaimStatus claims{
      .moves = {{DeviceUuid("GPU-aaaa"), true, now - 5min, "is offered by claims when Pod team/a ends"},
                {DeviceUuid("GPU-gone"), false, now, "is offered by the device plugin later"}},
      .waiting = {{"team", "b", "u1", now - 12s, "the MPS control daemon is starting"},
                  {"team", "c", "u2", now + 3s, "the claim does not exist"}}};
  EXPECT_EQ(list_report(two_gpu_node(), "table", claims, now),
            R"(NVIDIA driver 570.124.06, CUDA 12.8, 2 GPUs

GPU    MODEL          MEMORY    NUMA  NVLINK  MIG         STATE         UUID
0      H100 80GB HB…  79.6 GiB  0     2       on (→off)   ok (→claims)  GPU-aaaa
  0:0  MIG 1g.10gb    9.6 GiB   -     -       slices 2-2  ok (→claims)  MIG-bbbb
1      -              -         -     -       -           device_lost   -
GPU 0 is offered by claims when Pod team/a ends (for 5m)
GPU 1 cannot be read: nvmlDeviceGetHandleByIndex_v2: GPU is lost
claim team/b is not prepared: the MPS control daemon is starting (for 12s)
claim team/c is not prepared: the claim does not exist (for 0s)
)");
  const auto json = nlohmann::json::parse(list_report(two_gpu_node(), "json", claims, now));
  EXPECT_EQ(json["claims"]["moves"][1],
            (nlohmann::json{{"gpu", "GPU-gone"},
                            {"to", "devicePlugin"},
                            {"since", "2026-01-31T12:05:00.000Z"},
                            {"reason", "is offered by the device plugin later"}}));
  EXPECT_EQ(json["claims"]["waiting"][0]["since"], "2026-01-31T12:04:48.000Z");
  EXPECT_FALSE(nlohmann::json::parse(list_report(two_gpu_node(), "json")).contains("claims"));
}

TEST(List, TableIsAlignedAndListsReadErrors) {
  EXPECT_EQ(list_report(two_gpu_node(), "table"),
            R"(NVIDIA driver 570.124.06, CUDA 12.8, 2 GPUs

GPU    MODEL           MEMORY    NUMA  NVLINK  MIG         STATE        UUID
0      H100 80GB HBM3  79.6 GiB  0     2       on (→off)   ok           GPU-aaaa
  0:0  MIG 1g.10gb     9.6 GiB   -     -       slices 2-2  ok           MIG-bbbb
1      -               -         -     -       -           device_lost  -
GPU 1 cannot be read: nvmlDeviceGetHandleByIndex_v2: GPU is lost
)");
}

TEST(List, WideAddsColumnsAndChangesNone) {
  const auto wide = list_report(two_gpu_node(), "wide");
  for (const char* text : {"NVIDIA H100 80GB HBM3", "PCI", "2 switched", "on (needs-reset: off)",
                           "ARCHITECTURE", "hopper", "9.0", "/dev/nvidia0", "1650", "01234567.3"}) {
    EXPECT_NE(wide.find(text), std::string::npos) << text;
  }
}

TEST(List, JsonHasEveryField) {
  const auto json = nlohmann::json::parse(list_report(two_gpu_node(), "json"));
  EXPECT_EQ(json["driver"]["version"], "570.124.06");
  EXPECT_EQ(json["driver"]["cuda"], "12.8");
  const auto& gpu = json["gpus"][0];
  EXPECT_EQ(gpu["uuid"], "GPU-aaaa");
  EXPECT_EQ(gpu["numaNode"], 0);
  EXPECT_EQ(gpu["memoryBytes"], 81559ull << 20);
  EXPECT_EQ(gpu["computeCapability"], "9.0");
  EXPECT_EQ(gpu["mig"]["enabled"], true);
  EXPECT_EQ(gpu["mig"]["pending"], false);
  EXPECT_EQ(gpu["mig"]["devices"][0]["profile"], "1g.10gb");
  EXPECT_EQ(gpu["mig"]["devices"][0]["placement"]["start"], 2);
  EXPECT_EQ(gpu["nvlinks"].size(), 2u);
  EXPECT_EQ(gpu["fabric"]["cliqueId"], 3);
  EXPECT_TRUE(gpu["unreadable"].is_null());
  EXPECT_TRUE(json["gpus"][1]["numaNode"].is_null());
  EXPECT_EQ(json["gpus"][1]["unreadable"]["code"], "device_lost");
}

TEST(List, YamlEqualsJson) {
  const auto yaml = list_report(two_gpu_node(), "yaml");
  EXPECT_EQ(yaml.substr(0, yaml.find("    brand")), R"(driver:
  version: 570.124.06
  cuda: "12.8"
gpus:
  - index: 0
    uuid: GPU-aaaa
    model: NVIDIA H100 80GB HBM3
)");
  EXPECT_NE(yaml.find("      devices:\n        - index: 0\n          uuid: MIG-bbbb\n"), std::string::npos)
      << yaml;
  EXPECT_NE(yaml.find("    nvlinks: []\n"), std::string::npos) << "of the lost one";
}

TEST(List, NoGpusAndNoDriver) {
  Snapshot none;
  none.driver = {"570.124.06", 12080};
  EXPECT_EQ(list_report(none, "table"), "NVIDIA driver 570.124.06, CUDA 12.8, 0 GPUs\n");
  EXPECT_EQ(list_report(none, "yaml"), "driver:\n  version: 570.124.06\n  cuda: \"12.8\"\ngpus: []\n");
  // A library that cannot be loaded: with none at all the loader would look for this machine's.
  const auto root = std::filesystem::temp_directory_path() / ("gpulet-list-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "usr/lib64");
  std::ofstream(root / "usr/lib64/libnvidia-ml.so.1").flush();
  EXPECT_EQ(run_list({.driver_root = root.string()}), 1);
  std::filesystem::remove_all(root);
}

TEST(List, FormatsBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(9856ull << 20), "9.6 GiB");
  EXPECT_EQ(format_bytes(186ull << 30), "186 GiB");
}

}  // namespace

namespace {

using inventory::PcieDistance;
using inventory::Snapshot;

// Three GPUs: 0 and 1 linked twice and on one board, 2 far off and without a NUMA node.
Snapshot linked_node() {
  Snapshot snapshot;
  snapshot.gpus.resize(3);
  snapshot.pcie.assign(9, PcieDistance::kSystem);
  for (unsigned i = 0; i < 3; ++i) {
    snapshot.gpus[i].index = i;
    snapshot.gpus[i].uuid = DeviceUuid("GPU-" + std::to_string(i));
    snapshot.gpus[i].pci = {0, 0x10 + i, 0, 0};
    if (i < 2) snapshot.gpus[i].numa_node = static_cast<int>(i);
    snapshot.pcie[i * 3 + i] = PcieDistance::kInternal;
  }
  for (unsigned i = 0; i < 2; ++i) {
    for (unsigned link = 0; link < 2; ++link) {
      snapshot.gpus[i].nvlinks.push_back({link, inventory::NvLinkRemote::kGpu, snapshot.gpus[1 - i].pci});
    }
  }
  snapshot.pcie[0 * 3 + 2] = snapshot.pcie[2 * 3 + 0] = PcieDistance::kInternal;
  return snapshot;
}

TEST(Topo, MatrixAndScores) {
  const auto text = topo_report(linked_node(), "table");
  EXPECT_EQ(text.substr(0, text.find("\nLegend")), R"(      GPU0  GPU1  GPU2  NUMA Affinity
GPU0  X     NV2   PIX   0
GPU1  NV2   X     SYS   1
GPU2  PIX   SYS   X     N/A
)");
  EXPECT_NE(text.find(R"(
      GPU0  GPU1  GPU2
GPU0  X     210   60
GPU1  210   X     10
GPU2  60    10    X
)"),
            std::string::npos)
      << text;
  for (const char* word : {"X ", "SYS", "NODE", "PHB", "PXB", "PIX", "NV#"}) {
    EXPECT_NE(text.find("\n  " + std::string(word)), std::string::npos) << word;
  }
}

TEST(Topo, Json) {
  const auto json = nlohmann::json::parse(topo_report(linked_node(), "json"));
  EXPECT_EQ(json["gpus"][1]["uuid"], "GPU-1");
  EXPECT_EQ(json["gpus"][1]["numaNode"], 1);
  EXPECT_TRUE(json["gpus"][2]["numaNode"].is_null());
  EXPECT_EQ(json["labels"][0], (std::vector<std::string>{"X", "NV2", "PIX"}));
  EXPECT_EQ(json["scores"][0], (std::vector<int>{0, 210, 60}));
  EXPECT_EQ(json["nvlinks"][1], (std::vector<int>{2, 0, 0}));
}

TEST(Topo, NoGpusAndNoDriver) {
  EXPECT_EQ(topo_report({}, "table"), "no GPUs\n");
  // A library that cannot be loaded: with none at all the loader would look for this machine's.
  const auto root = std::filesystem::temp_directory_path() / ("gpulet-topo-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "usr/lib64");
  std::ofstream(root / "usr/lib64/libnvidia-ml.so.1").flush();
  EXPECT_EQ(run_topo({.driver_root = root.string()}), 1);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace gpulet::cli
