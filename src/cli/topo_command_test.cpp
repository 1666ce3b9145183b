#include "cli/topo_command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace gpulet::cli {
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
  const auto text = *topo_report(linked_node(), "table");
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
  const auto json = nlohmann::json::parse(*topo_report(linked_node(), "json"));
  EXPECT_EQ(json["gpus"][1]["uuid"], "GPU-1");
  EXPECT_EQ(json["gpus"][1]["numaNode"], 1);
  EXPECT_TRUE(json["gpus"][2]["numaNode"].is_null());
  EXPECT_EQ(json["labels"][0], (std::vector<std::string>{"X", "NV2", "PIX"}));
  EXPECT_EQ(json["scores"][0], (std::vector<int>{0, 210, 60}));
  EXPECT_EQ(json["nvlinks"][1], (std::vector<int>{2, 0, 0}));
}

TEST(Topo, NoGpusNoDriverAndWrongOutputs) {
  EXPECT_EQ(*topo_report({}, "table"), "no GPUs\n");
  EXPECT_EQ(topo_report({}, "yaml").error().code(), Code::kInvalidArgument);
  EXPECT_EQ(topo({.output = "yaml"}), 2);
  // A library that cannot be loaded: with none at all the loader would look for this machine's.
  const auto root = std::filesystem::temp_directory_path() / ("gpulet-topo-" + std::to_string(::getpid()));
  std::filesystem::create_directories(root / "usr/lib64");
  std::ofstream(root / "usr/lib64/libnvidia-ml.so.1").flush();
  EXPECT_EQ(topo({.driver_root = root.string()}), 1);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace gpulet::cli
