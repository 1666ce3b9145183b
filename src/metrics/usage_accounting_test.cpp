#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "metrics/test_pods.h"
#include "metrics/usage_accounting.h"

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kCharged("GPU-1");

PodShares shares(const std::vector<std::pair<PodName, double>>& pods, double rest) {
  PodShares all;
  for (const auto& [pod, busy] : pods) all.pods.push_back({{pod, {"main"}, {}}, {}, busy});
  all.unattributed_busy = rest;
  return all;
}

TEST(UsageAccounting, EnergyFollowsBusyTime) {
  UsageAccounting accounts;
  accounts.add_usage(kCharged, {1000, 800ms}, shares({{kTrain, 60}, {kServe, 0}}, 20));
  const auto& account = accounts.usage_by_device().at(kCharged);
  EXPECT_EQ(account.pods.at(kTrain), (UsageAmount{750, 600ms}));
  EXPECT_EQ(account.pods.at(kServe), (UsageAmount{0, 0ms}));
  EXPECT_EQ(account.unattributed, (UsageAmount{250, 200ms}));
  EXPECT_EQ(account.total, (UsageAmount{1000, 800ms}));
}

TEST(UsageAccounting, IdleTimeIsChargedToTheOnlyHolder) {
  UsageAccounting accounts;
  accounts.add_usage(kCharged, {100, 0ms}, shares({{kTrain, 0}}, 0));
  EXPECT_EQ(accounts.usage_by_device().at(kCharged).pods.at(kTrain), (UsageAmount{100, 0ms}));
  accounts.add_usage(kCharged, {100, 0ms}, shares({{kServe, 0}, {kTrain, 0}}, 0));
  EXPECT_EQ(accounts.usage_by_device().at(kCharged).pods.at(kTrain), (UsageAmount{100, 0ms}));
  EXPECT_EQ(accounts.usage_by_device().at(kCharged).unattributed, (UsageAmount{100, 0ms}));
  accounts.add_usage(kCharged, {100, 0ms}, shares({}, 0));
  EXPECT_EQ(accounts.usage_by_device().at(kCharged).unattributed, (UsageAmount{200, 0ms}));
}

TEST(UsageAccounting, EndedPodMovesToDeparted) {
  UsageAccounting accounts;
  accounts.add_usage(kCharged, {100, 10ms}, shares({{kTrain, 50}}, 0));
  accounts.add_usage(kCharged, {100, 10ms}, shares({{kServe, 50}}, 0));
  const auto& account = accounts.usage_by_device().at(kCharged);
  EXPECT_EQ(account.pods.size(), 1u);
  EXPECT_EQ(account.departed, (UsageAmount{100, 10ms}));
  // Another Pod of that name starts at zero.
  accounts.add_usage(kCharged, {100, 10ms}, shares({{kTrain, 50}}, 0));
  EXPECT_EQ(account.pods.at(kTrain), (UsageAmount{100, 10ms}));
  EXPECT_EQ(account.departed, (UsageAmount{200, 20ms}));
}

TEST(UsageAccounting, UnknownUseIsUnattributed) {
  UsageAccounting accounts;
  auto unknown = shares({{kServe, 10}, {kTrain, 20}}, 30);
  unknown.is_busy_known = false;
  accounts.add_usage(kCharged, {100, 60ms}, unknown);
  EXPECT_EQ(accounts.usage_by_device().at(kCharged).unattributed, (UsageAmount{100, 60ms}));
  accounts.retain_devices({});
  EXPECT_TRUE(accounts.usage_by_device().empty());
}

RC_GTEST_PROP(UsageAccountingProperties, TheSumIsTheDevices, ()) {
  UsageAccounting accounts;
  std::uint64_t energy = 0;
  std::chrono::nanoseconds busy{};
  for (int round = *rc::gen::inRange(1, 30); round > 0; --round) {
    std::vector<std::pair<PodName, double>> pods;
    for (int i = 0; i < 4; ++i) {
      if (*rc::gen::arbitrary<bool>())
        pods.push_back({{"n", std::to_string(i)}, *rc::gen::inRange(0, 100) / 3.0});
    }
    auto of = shares(pods, *rc::gen::inRange(0, 100));
    of.is_busy_known = *rc::gen::inRange(0, 5) != 0;
    const UsageAmount device{*rc::gen::inRange<std::uint64_t>(0, 1'000'000),
                             std::chrono::nanoseconds(*rc::gen::inRange(0, 1'000'000'000))};
    energy += device.millijoules;
    busy += device.busy;
    const auto before = accounts.usage_by_device();
    accounts.add_usage(kCharged, device, of);
    const auto& account = accounts.usage_by_device().at(kCharged);
    UsageAmount sum = account.unattributed;
    sum.millijoules += account.departed.millijoules;
    sum.busy += account.departed.busy;
    for (const auto& [pod, charge] : account.pods) {
      sum.millijoules += charge.millijoules;
      sum.busy += charge.busy;
      // Counters only increase.
      if (!before.contains(kCharged) || !before.at(kCharged).pods.contains(pod)) continue;
      RC_ASSERT(charge.millijoules >= before.at(kCharged).pods.at(pod).millijoules);
      RC_ASSERT(charge.busy >= before.at(kCharged).pods.at(pod).busy);
    }
    RC_ASSERT(account.pods.size() == pods.size());
    RC_ASSERT(sum.millijoules == energy);
    RC_ASSERT(sum.busy == busy);
    RC_ASSERT(account.total == (UsageAmount{energy, busy}));
  }
}

}  // namespace

namespace {

using namespace std::chrono_literals;

const DeviceUuid kUsedGpu("GPU-0"), kOne("MIG-1"), kTwo("MIG-2"), kThree("MIG-3");

std::uint64_t whole(std::uint64_t value) { return value; }

Sample shared_gpu() {
  Sample sample;
  GpuSample gpu;
  gpu.uuid = kUsedGpu;
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

TEST(Usage, AttributesSharesOfASharedGpu) {
  const auto shares =
      attribute_sample(shared_gpu(), holders(kUsedGpu, {kServe, kTrain}), {{1, kTrain}, {2, kServe}});
  ASSERT_EQ(shares.size(), 1u);
  const auto& gpu = shares.at(kUsedGpu);
  EXPECT_EQ(gpu.pods[0].memory, mebibytes(20));
  EXPECT_EQ(gpu.pods[1].memory, mebibytes(30));
  EXPECT_DOUBLE_EQ(gpu.pods[1].busy, 40);
  EXPECT_EQ(gpu.unattributed_memory, mebibytes(50));
  EXPECT_DOUBLE_EQ(gpu.unattributed_busy, 10);
  auto failed = shared_gpu();
  failed.gpus[0].error = Error(Code::kDeviceLost, "lost");
  EXPECT_TRUE(attribute_sample(failed, {}, {}).empty());
}

TEST(Usage, AttributesSharesOfMigDevices) {
  auto all = holders(kOne, {kTrain});
  all[kTwo] = {{kServe, {"main"}, {}}};
  const auto shares = attribute_sample(cut_gpu(), all, {{1, kTrain}, {2, kServe}});
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares.at(kOne).pods[0].memory, mebibytes(100)) << "it is alone in its instance";
  EXPECT_DOUBLE_EQ(shares.at(kOne).pods[0].busy, 25);
  EXPECT_EQ(shares.at(kTwo).pods[0].memory, mebibytes(10));
  EXPECT_DOUBLE_EQ(shares.at(kTwo).pods[0].busy, 0);
  EXPECT_EQ(shares.at(kThree).unattributed_memory, Bytes{0});
}

TEST(Usage, ComputesUseBetweenTwoSamples) {
  EnergyCounters counters;
  EXPECT_EQ(usage_since_last_sample(shared_gpu(), 10s, counters).at(kUsedGpu), (UsageAmount{0, 5s}))
      << "the first sample";
  auto silent = shared_gpu();
  silent.gpus[0].error = Error(Code::kDeviceLost, "lost");
  EXPECT_TRUE(usage_since_last_sample(silent, 10s, counters).empty());
  auto later = shared_gpu();
  later.gpus[0].values[Field::kEnergy] = whole(1700);
  EXPECT_EQ(usage_since_last_sample(later, 10s, counters).at(kUsedGpu), (UsageAmount{700, 5s}))
      << "nothing is lost of the time between";
  EXPECT_EQ(usage_since_last_sample(shared_gpu(), 10s, counters).at(kUsedGpu).millijoules, 0u)
      << "the counter began again";
  EXPECT_EQ(usage_since_last_sample(later, 10s, counters).at(kUsedGpu).millijoules, 700u);
  const auto mig = usage_since_last_sample(cut_gpu(), 8s, counters);
  EXPECT_EQ(mig.at(kOne), (UsageAmount{0, 2s}));
  EXPECT_EQ(mig.at(kTwo), (UsageAmount{0, 0s}));
  EXPECT_EQ(mig.at(kUsedGpu), (UsageAmount{0, 0s}));
  usage_since_last_sample(Sample{}, 1s, counters);
  EXPECT_TRUE(counters.empty()) << "a GPU that is gone";
}

}  // namespace
}  // namespace gpulet::metrics
