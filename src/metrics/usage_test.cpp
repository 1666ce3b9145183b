#include "metrics/usage.h"

#include <gtest/gtest.h>

#include "metrics/test_pods.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kGpu("GPU-0"), kOne("MIG-1"), kTwo("MIG-2"), kThree("MIG-3");

std::uint64_t whole(std::uint64_t value) { return value; }

Sample shared_gpu() {
  Sample sample;
  GpuSample gpu;
  gpu.uuid = kGpu;
  gpu.values = {{Field::kFbUsed, whole(100)}, {Field::kGpuUtil, whole(50)}, {Field::kEnergy, whole(1000)}};
  gpu.processes = {{1, mebibytes(30), 40}, {2, mebibytes(20), 0}};
  sample.gpus.push_back(gpu);
  return sample;
}

Sample cut_gpu() {
  auto sample = shared_gpu();
  auto& gpu = sample.gpus[0];
  gpu.mig = true;
  gpu.processes.clear();
  gpu.values.erase(Field::kGpuUtil);
  InstanceSample alone{1,  "1g.10gb", {{Field::kFbUsed, whole(100)}, {Field::kGraphicsActive, 0.25}},
                       {}, {},        {}};
  alone.devices = {{kOne, 0, {{1, mebibytes(30), 0}}}};
  InstanceSample two{2, "2g.20gb", {{Field::kFbUsed, whole(100)}, {Field::kGraphicsActive, 0.5}}, {}, {}, {}};
  two.devices = {{kTwo, 0, {{2, mebibytes(10), 0}}}, {kThree, 1, {}}};
  gpu.instances = {alone, two};
  return sample;
}

Holders holders(const DeviceUuid& device, const std::vector<PodName>& pods) {
  Holders all;
  for (const auto& pod : pods) all[device].push_back({pod, {"main"}, {}});
  return all;
}

TEST(Usage, SharesOfASharedGpu) {
  const auto shares = shares_of(shared_gpu(), holders(kGpu, {kServe, kTrain}), {{1, kTrain}, {2, kServe}});
  ASSERT_EQ(shares.size(), 1u);
  const auto& gpu = shares.at(kGpu);
  EXPECT_EQ(gpu.pods[0].memory, mebibytes(20));
  EXPECT_EQ(gpu.pods[1].memory, mebibytes(30));
  EXPECT_DOUBLE_EQ(gpu.pods[1].busy, 40);
  EXPECT_EQ(gpu.rest_memory, mebibytes(50));
  EXPECT_DOUBLE_EQ(gpu.rest_busy, 10);
  auto failed = shared_gpu();
  failed.gpus[0].failed = Error(Code::kDeviceLost, "lost");
  EXPECT_TRUE(shares_of(failed, {}, {}).empty());
}

TEST(Usage, SharesOfMigDevices) {
  auto all = holders(kOne, {kTrain});
  all[kTwo] = {{kServe, {"main"}, {}}};
  const auto shares = shares_of(cut_gpu(), all, {{1, kTrain}, {2, kServe}});
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares.at(kOne).pods[0].memory, mebibytes(100)) << "it is alone in its instance";
  EXPECT_DOUBLE_EQ(shares.at(kOne).pods[0].busy, 25);
  EXPECT_EQ(shares.at(kTwo).pods[0].memory, mebibytes(10));
  EXPECT_DOUBLE_EQ(shares.at(kTwo).pods[0].busy, 0);
  EXPECT_EQ(shares.at(kThree).rest_memory, Bytes{0});
}

TEST(Usage, WhatWasUsedBetweenTwoSamples) {
  EnergyCounters counters;
  EXPECT_EQ(charges_of(shared_gpu(), 10s, counters).at(kGpu), (Charge{0, 5s})) << "the first sample";
  auto silent = shared_gpu();
  silent.gpus[0].failed = Error(Code::kDeviceLost, "lost");
  EXPECT_TRUE(charges_of(silent, 10s, counters).empty());
  auto later = shared_gpu();
  later.gpus[0].values[Field::kEnergy] = whole(1700);
  EXPECT_EQ(charges_of(later, 10s, counters).at(kGpu), (Charge{700, 5s}))
      << "nothing is lost of the time between";
  EXPECT_EQ(charges_of(shared_gpu(), 10s, counters).at(kGpu).millijoules, 0u) << "the counter began anew";
  EXPECT_EQ(charges_of(later, 10s, counters).at(kGpu).millijoules, 700u);
  const auto mig = charges_of(cut_gpu(), 8s, counters);
  EXPECT_EQ(mig.at(kOne), (Charge{0, 2s}));
  EXPECT_EQ(mig.at(kTwo), (Charge{0, 0s}));
  EXPECT_EQ(mig.at(kGpu), (Charge{0, 0s}));
  charges_of(Sample{}, 1s, counters);
  EXPECT_TRUE(counters.empty()) << "a GPU that is gone";
}

}  // namespace
}  // namespace gpulet::metrics
