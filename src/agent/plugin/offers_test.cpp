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

}  // namespace
}  // namespace gpulet::agent
