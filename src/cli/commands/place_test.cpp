#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"

namespace gpulet::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// Four GPUs: 0 and 1, 2 and 3 have two direct links each; a NUMA node for each pair.
inventory::Snapshot volta_node() {
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 4; ++i) {
    inventory::Gpu gpu;
    gpu.index = i;
    gpu.uuid = DeviceUuid("GPU-0000000" + std::to_string(i) + "-1111-2222-3333-444444444444");
    gpu.model = "Tesla V100-SXM2-16GB";
    gpu.pci = {0, 16 + i, 0, 0};
    gpu.numa_node = static_cast<int>(i / 2);
    gpu.minor = i;
    for (unsigned link = 0; link < 2; ++link) {
      gpu.nvlinks.push_back({link, inventory::NvLinkRemote::kGpu, {0, 16 + (i ^ 1), 0, 0}});
    }
    snapshot.gpus.push_back(std::move(gpu));
  }
  for (unsigned a = 0; a < 4; ++a) {
    for (unsigned b = 0; b < 4; ++b) {
      snapshot.pcie.push_back(a == b           ? inventory::PcieDistance::kInternal
                              : a / 2 == b / 2 ? inventory::PcieDistance::kSingle
                                               : inventory::PcieDistance::kSystem);
    }
  }
  return snapshot;
}

config::Config settings() {
  config::Config config;
  config.gpu_resources = {{"*", ResourceName("nvidia.com/gpu")}};
  return config;
}

config::Config shared_settings() {
  config::Config config = settings();
  config.sharing.strategy = config::SharingStrategy::kTimeSlicing;
  config::ReplicatedResource replicated;
  replicated.name = ResourceName("nvidia.com/gpu");
  replicated.replicas = 2;
  config.sharing.resources.push_back(replicated);
  return config;
}

std::string place_report_of(const PlaceOptions& options, const config::Config& config = settings(),
                            const inventory::Snapshot& snapshot = volta_node()) {
  const Result<std::string> text = place_report(snapshot, config, options);
  return text ? *text : "error: " + text.error().full_message();
}

TEST(PlaceReport, PrintsTheDevicesTheScoreAndTheReason) {
  PlaceOptions options;
  options.size = 2;
  EXPECT_EQ(place_report_of(options),
            "2 of 4 available nvidia.com/gpu, best-effort\n"
            "\n"
            "GPU  DEVICE                                    NUMA  MODEL\n"
            "0    GPU-00000000-1111-2222-3333-444444444444  0     Tesla V100-SXM2-16GB\n"
            "1    GPU-00000001-1111-2222-3333-444444444444  0     Tesla V100-SXM2-16GB\n"
            "\n"
            "score   250\n"
            "method  exact by classes\n"
            "reason  GPUs 0 and 1, linked by NV2, on NUMA node 0; in the best split of the 4 available into "
            "sets of 2, "
            "total 500\n");
}

TEST(PlaceReport, AcceptsIndicesAndUuids) {
  PlaceOptions options;
  options.size = 2;
  options.available = {"1", "GPU-00000002-1111-2222-3333-444444444444", "3"};
  options.output = "json";
  const nlohmann::json json = nlohmann::json::parse(place_report_of(options));
  EXPECT_EQ(json["available"], 3);
  EXPECT_EQ(json["devices"][0]["index"], "2");
  EXPECT_EQ(json["devices"][1]["id"], "GPU-00000003-1111-2222-3333-444444444444");
  EXPECT_EQ(json["devices"][1]["numaNode"], 1);
  EXPECT_EQ(json["score"], 250);
  EXPECT_EQ(json["partitionScore"], 250);
  EXPECT_EQ(json["policy"], "best-effort");
  options.require = {"1"};
  options.policy = "tightest";
  const nlohmann::json with = nlohmann::json::parse(place_report_of(options));
  EXPECT_EQ(with["devices"][0]["index"], "1");
  EXPECT_EQ(with["policy"], "tightest");
}

TEST(PlaceReport, UnhealthyDevicesAreAvailableOnlyByName) {
  inventory::Snapshot snapshot = volta_node();
  snapshot.gpus[0].health = {false, "XID 79: GPU has fallen off the bus"};
  PlaceOptions options;
  options.size = 2;
  EXPECT_THAT(place_report_of(options, settings(), snapshot), StartsWith("2 of 3 available"));
  EXPECT_THAT(place_report_of(options, settings(), snapshot), HasSubstr("GPUs 2 and 3"));
  options.require = {"0"};
  EXPECT_EQ(place_report_of(options, settings(), snapshot),
            "error: required device is not available: GPU-00000000-1111-2222-3333-444444444444");
}

TEST(PlaceReport, SharesAreNamedByTheirGpuOrTheirOwnId) {
  PlaceOptions options;
  options.size = 2;
  options.require = {"3"};
  options.policy = "packed";
  options.output = "json";
  const nlohmann::json json = nlohmann::json::parse(place_report_of(options, shared_settings()));
  EXPECT_EQ(json["available"], 8);
  EXPECT_EQ(json["method"], "shared");
  EXPECT_EQ(json["policy"], "packed");
  EXPECT_EQ(json["devices"][0]["id"], "GPU-00000003-1111-2222-3333-444444444444::0");
  EXPECT_EQ(json["devices"][1]["id"], "GPU-00000003-1111-2222-3333-444444444444::1");
  options.available = {"0", "GPU-00000001-1111-2222-3333-444444444444::1"};
  options.require = {};
  EXPECT_EQ(nlohmann::json::parse(place_report_of(options, shared_settings()))["available"], 3);
}

TEST(PlaceReport, RejectsInvalidInput) {
  PlaceOptions options;
  options.size = 5;
  EXPECT_EQ(place_report_of(options), "error: 5 devices requested, 4 available");
  options.size = 1;
  options.available = {"7"};
  EXPECT_EQ(place_report_of(options),
            "error: nvidia.com/gpu has no device '7'; expected 0, 1, 2, 3, or a UUID");
  options.available = {"GPU-"};
  EXPECT_THAT(place_report_of(options), StartsWith("error: 'GPU-' is ambiguous; it matches GPU-"));
  options.available = {};
  options.require = {"GPU-x"};
  EXPECT_EQ(place_report_of(options),
            "error: nvidia.com/gpu has no device 'GPU-x'; expected 0, 1, 2, 3, or a UUID");
  options.require = {};
  options.policy = "loosest";
  EXPECT_EQ(place_report_of(options),
            "error: unknown policy \"loosest\"; expected best-effort, tightest, distributed or packed");
  options.policy = "";
  options.resource = "nvidia.com/mig-1g.5gb";
  EXPECT_EQ(place_report_of(options),
            "error: no resource nvidia.com/mig-1g.5gb; this node has nvidia.com/gpu");
  options.resource = "";
  EXPECT_THAT(place_report_of({}, settings(), inventory::Snapshot{}),
              StartsWith("error: no allocatable GPU on this node"));
}

}  // namespace
}  // namespace gpulet::cli
