#include "cli/list_command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/text_table.h"

namespace gpulet::cli {
namespace {

using inventory::Snapshot;

// Two GPUs: one with a MIG device in node 0, one lost, of which only its index is known.
Snapshot node() {
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

TEST(List, TableIsAlignedAndSaysWhatCannotBeRead) {
  EXPECT_EQ(*list_report(node(), "table"),
            R"(NVIDIA driver 570.124.06, CUDA 12.8, 2 GPUs

GPU    MODEL                  MEMORY    NUMA  PCI           NVLINK      MIG                     STATE        UUID
0      NVIDIA H100 80GB HBM3  79.6 GiB  0     0000:1b:00.0  2 switched  on (off after a reset)  ok           GPU-aaaa
  0:0  MIG 1g.10gb            9.6 GiB   -     GI 7 CI 0     -           slices 2-2              ok           MIG-bbbb
1      -                      -         -     -             -           -                       device_lost  -
GPU 1 cannot be read: nvmlDeviceGetHandleByIndex_v2: GPU is lost
)");
}

TEST(List, WideAddsColumnsAndChangesNone) {
  const auto wide = *list_report(node(), "wide");
  for (const char* text : {"ARCHITECTURE", "hopper", "9.0", "/dev/nvidia0", "1650", "01234567.3"}) {
    EXPECT_NE(wide.find(text), std::string::npos) << text;
  }
}

TEST(List, JsonHasAllOfIt) {
  const auto json = nlohmann::json::parse(*list_report(node(), "json"));
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

TEST(List, YamlSaysTheSame) {
  const auto yaml = *list_report(node(), "yaml");
  EXPECT_EQ(yaml.substr(0, yaml.find("    brand")), R"(driver:
  version: "570.124.06"
  cuda: "12.8"
gpus:
  - index: 0
    uuid: "GPU-aaaa"
    model: "NVIDIA H100 80GB HBM3"
)");
  EXPECT_NE(yaml.find("      devices:\n        - index: 0\n          uuid: \"MIG-bbbb\"\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("    nvlinks: []\n"), std::string::npos) << "of the lost one";
}

TEST(List, NoGpusAndWrongOutputs) {
  Snapshot none;
  none.driver = {"570.124.06", 12080};
  EXPECT_EQ(*list_report(none, "table"), "NVIDIA driver 570.124.06, CUDA 12.8, 0 GPUs\n");
  EXPECT_EQ(*list_report(none, "yaml"), "driver:\n  version: \"570.124.06\"\n  cuda: \"12.8\"\ngpus: []\n");
  EXPECT_EQ(list_report(none, "xml").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(list({.output = "xml"}), 2);
  // A library that cannot be loaded: with none at all the loader would look for this machine's.
  const auto root = std::filesystem::temp_directory_path() / ("gpulet-list-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "usr/lib64");
  std::ofstream(root / "usr/lib64/libnvidia-ml.so.1").flush();
  EXPECT_EQ(list({.driver_root = root.string()}), 1);
  std::filesystem::remove_all(root);
}

TEST(List, BytesForPeople) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(9856ull << 20), "9.6 GiB");
  EXPECT_EQ(human_bytes(186ull << 30), "186 GiB");
}

}  // namespace
}  // namespace gpulet::cli
