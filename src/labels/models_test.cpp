#include "labels/models.h"

#include <gtest/gtest.h>

#include "labels/test_nodes.h"

namespace gpulet::labels {
namespace {

// GPU 2 is in MIG mode.
inventory::Snapshot three_gpus() {
  inventory::Snapshot snapshot;
  snapshot.driver = {"570.124.06", 12080};
  for (unsigned i = 0; i < 3; ++i) {
    auto& gpu = snapshot.gpus.emplace_back();
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.model = "NVIDIA H100 80GB HBM3";
    gpu.memory = mebibytes(81559);
    gpu.compute_major = 9;
    gpu.pci_class = 0x030200;
    gpu.mig_enabled = i == 2;
  }
  snapshot.pcie.resize(snapshot.gpus.size() * snapshot.gpus.size());
  return snapshot;
}

TEST(SharingView, ClaimsCountForTheGradeOfMemoryLimits) {
  const auto grade_with = [](const std::string& fraction, const std::string& rules) {
    const std::string settings =
        "flags: {mpsRoot: /mps}\ngpulet: {" + fraction + "dra: {enabled: true}, partition: [" + rules + "]}";
    return test::value(test::labels_with(three_gpus(), settings), "gpulet.io/gpu.memory-limit");
  };
  const std::string kill = "fraction: {onExceeded: kill}, ",
                    whole = "{devices: [1], whole: {consumableShares: memory}}";
  EXPECT_EQ(grade_with(kill, whole), "audited");
  EXPECT_EQ(grade_with("", whole), "(absent)") << "nothing holds it";
  EXPECT_EQ(grade_with(kill, "{devices: [1], whole: {}}"), "(absent)") << "one claim has the GPU";
  EXPECT_EQ(grade_with(kill, "{devices: [2], whole: {consumableShares: memory}}"), "(absent)")
      << "it is in MIG mode";
  const std::string mps = "{devices: [0], offer: devicePlugin, mps: {replicas: 4, name: gpu.shared}}";
  EXPECT_EQ(grade_with("", mps), "mps");
  EXPECT_EQ(grade_with(kill, mps + ", " + whole), "audited") << "the least of both";
  EXPECT_EQ(grade_with("", mps + ", " + whole), "(absent)");
}

}  // namespace
}  // namespace gpulet::labels
