#include "agent/plugin/offers.h"

#include <gtest/gtest.h>

namespace gpulet::agent {
namespace {

inventory::Snapshot two_gpus() {
  inventory::Snapshot snapshot;
  for (unsigned i = 0; i < 2; ++i) {
    inventory::Gpu gpu;
    gpu.index = gpu.minor = i;
    gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
    gpu.model = "NVIDIA L40S";
    snapshot.gpus.push_back(gpu);
  }
  snapshot.gpus[1].health = {false, "XID 79"};
  return snapshot;
}

TEST(Offers, DevicesAreUnhealthyWithoutTheNodeOfCuda) {
  OfferBuilder builder;
  config::Config config;
  PlanInputs inputs;
  inputs.files.control_nodes = {"/dev/nvidiactl"};
  auto built = builder.build_offers(two_gpus(), config, inputs);
  ASSERT_EQ(built.offers.size(), 1u);
  EXPECT_TRUE(built.offers[0]->resource.devices.at(0).health.healthy);
  EXPECT_TRUE(built.notes.empty());
  const auto before = built.offers[0];

  inputs.files.compute_problem = "/dev/nvidia-uvm is missing";
  built = builder.build_offers(two_gpus(), config, inputs);
  ASSERT_EQ(built.offers.size(), 1u);
  const auto& devices = built.offers[0]->resource.devices;
  EXPECT_EQ(devices.at(0).health, (inventory::Health{false, "/dev/nvidia-uvm is missing"}));
  EXPECT_EQ(devices.at(1).health, (inventory::Health{false, "XID 79"}));
  ASSERT_EQ(built.notes.size(), 1u);
  EXPECT_EQ(built.notes[0].message, "no GPU can be used for compute: /dev/nvidia-uvm is missing");

  inputs.files.compute_problem.clear();
  built = builder.build_offers(two_gpus(), config, inputs);
  EXPECT_EQ(built.offers.at(0)->resource, before->resource);
}

TEST(Offers, AnExcludedGpuIsARemarkAndNoNote) {
  config::Config config;
  auto& rule = config.gpulet.partition.emplace_back();
  rule.devices = config::GpuRefs{{1, 1, {}}};
  rule.mode = config::Exclude{};
  rule.position = "x.yaml:3:5";
  const auto built = OfferBuilder().build_offers(two_gpus(), config, {});
  ASSERT_EQ(built.offers.size(), 1u);
  ASSERT_EQ(built.offers[0]->resource.devices.size(), 1u);
  EXPECT_EQ(built.offers[0]->resource.devices[0].id.str(), "GPU-0");
  EXPECT_TRUE(built.notes.empty());
  ASSERT_EQ(built.remarks.size(), 1u);
  EXPECT_EQ(built.remarks[0].message, "GPU 1 (GPU-1) is excluded by the rule at x.yaml:3:5");
}

TEST(Offers, SharesAreChosenWhereTheRuleSays) {
  using placement::SharesOn;
  OfferBuilder builder;
  for (const auto& [where, expected] : {std::pair(SharesOn::kAnyGpu, "GPU-0::0 GPU-1::0 "),
                                        std::pair(SharesOn::kOneGpu, "GPU-0::0 GPU-0::1 "),
                                        std::pair(SharesOn::kDifferentGpus, "GPU-0::0 GPU-1::0 ")}) {
    config::Config config;
    config.gpulet.partition.emplace_back().mode =
        config::TimeSlicing{.name = {}, .replicas = 2, .shares_on = where};
    const auto built = builder.build_offers(two_gpus(), config, {});
    ASSERT_EQ(built.offers.size(), 1u);
    std::vector<DeviceId> available;
    for (const auto& device : built.offers[0]->resource.devices) available.push_back(device.id);
    const auto choice = device_plugin::preferred_allocation(*built.offers[0], available, {}, 2);
    ASSERT_TRUE(choice.has_value());
    std::string ids;
    for (const auto& id : choice->devices) ids += id.str() + " ";
    EXPECT_EQ(ids, expected);
  }
}

TEST(Offers, ANoteIsNewOnce) {
  NewNotes notes;
  using Messages = std::vector<std::string>;
  EXPECT_EQ(notes.update({{"a"}, {"b"}, {"a"}}), (Messages{"a", "b"}));
  EXPECT_EQ(notes.update({{"b"}, {"c"}}), Messages{"c"});
  EXPECT_EQ(notes.update({{"a"}, {"c"}}), Messages{"a"}) << "it came back";
}

}  // namespace
}  // namespace gpulet::agent
