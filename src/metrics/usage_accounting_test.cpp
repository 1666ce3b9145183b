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

TEST(UsageAccounting, HeldTimeWithoutUseIsIdle) {
  struct Row {
    const char* name;
    HeldInterval held;
    double busy;
    bool is_busy_known;
    UsageAmount wanted;
  };
  const Row rows[] = {
      {"all of it", {10s, true, 1, {{kTrain, 1.0}}}, 40, true, {100, 4s, 10s, 6s}},
      {"a quarter", {10s, true, 1, {{kTrain, 0.25}}}, 10, true, {100, 1s, 2500ms, 1500ms}},
      {"more used than held", {10s, true, 1, {{kTrain, 0.25}}}, 80, true, {100, 8s, 2500ms, 0s}},
      {"unused", {10s, true, 1, {{kTrain, 1.0}}}, 0, true, {100, 0s, 10s, 10s}},
      {"use is not measured", {10s, false, 1, {{kTrain, 1.0}}}, 0, true, {100, 0s, 10s, 0s}},
      {"use cannot be attributed", {10s, true, 1, {{kTrain, 0.5}}}, 40, false, {0, 0s, 5s, 0s}},
      {"not held", {10s, true, 1, {}}, 40, true, {100, 4s, 0s, 0s}},
  };
  for (const auto& row : rows) {
    UsageAccounting accounts;
    auto of = shares({{kTrain, row.busy}}, 0);
    of.is_busy_known = row.is_busy_known;
    accounts.add_usage(kCharged, {100, std::chrono::milliseconds(static_cast<int>(row.busy * 100))}, of,
                       row.held);
    const auto& account = accounts.usage_by_device().at(kCharged);
    EXPECT_EQ(account.pods.at(kTrain), row.wanted) << row.name;
    EXPECT_EQ(account.unattributed.held, row.held.time - row.wanted.held) << row.name;
    EXPECT_EQ(account.total.held, row.held.time) << row.name;
    EXPECT_EQ(account.total.idle, row.wanted.idle) << row.name;
  }
}

TEST(UsageAccounting, NamespacesKeepWhatEndedPodsUsed) {
  UsageAccounting accounts;
  const HeldInterval trains{10s, true, 1, {{kTrain, 1.0}}}, serves{10s, true, 0.5, {{kServe, 1.0}}};
  accounts.add_usage(kCharged, {100, 4s}, shares({{kTrain, 40}}, 0), trains);
  accounts.add_usage(DeviceUuid("MIG-1"), {0, 2s}, shares({{kServe, 20}}, 0), serves);
  const auto revision = accounts.revision();
  accounts.add_usage(kCharged, {50, 0s}, shares({}, 0), {10s, true, 1, {}});
  EXPECT_NE(accounts.revision(), revision) << "a Pod has ended";
  accounts.retain_devices({});
  const auto& all = accounts.usage_by_namespace();
  EXPECT_EQ(all.at(kTrain.name_space), (UsageAmount{100, 4s, 10s, 6s}));
  EXPECT_EQ(all.at(kServe.name_space), (UsageAmount{0, 1s, 5s, 4s})) << "half a GPU";
  EXPECT_EQ(all.at(""), (UsageAmount{50, 0s, 10s, 0s}));
}

TEST(UsageAccounting, TheRevisionChangesOnlyWithPods) {
  UsageAccounting accounts;
  accounts.add_usage(kCharged, {100, 1s}, shares({}, 10), {10s, true, 1, {}});
  accounts.add_usage(kCharged, {0, 0s}, shares({{kTrain, 0}}, 0), {});
  EXPECT_EQ(accounts.revision(), 0u);
  accounts.add_usage(kCharged, {0, 0s}, shares({{kTrain, 0}}, 0), {10s, true, 1, {{kTrain, 1.0}}});
  EXPECT_EQ(accounts.revision(), 1u);
}

TEST(UsageAccounting, NamespacesAreBounded) {
  UsageAccounting accounts;
  const std::size_t many = kMaxUsageNamespaces + 10;
  for (std::size_t i = 0; i < many; ++i) {
    const PodName pod{"n" + std::to_string(i), "p"};
    accounts.add_usage(kCharged, {1, 0s}, shares({{pod, 0}}, 0), {1s, true, 1, {{pod, 1.0}}});
  }
  const auto& all = accounts.usage_by_namespace();
  EXPECT_LE(all.size(), kMaxUsageNamespaces + 1);
  EXPECT_EQ(all.at("n0").millijoules, 1u);
  std::uint64_t sum = 0;
  for (const auto& [name, amount] : all) sum += amount.millijoules;
  EXPECT_EQ(sum, many);
  EXPECT_GT(all.at(kOtherNamespaces).millijoules, 1u);
}

TEST(UsageAccounting, GoesOnWithARecord) {
  UsageAccounting before;
  before.add_usage(kCharged, {100, 4s}, shares({{kTrain, 30}}, 10), {10s, true, 1, {{kTrain, 1.0}}});
  before.add_usage(kCharged, {100, 0s}, shares({{kTrain, 0}, {kServe, 0}}, 0), {});
  UsageAccounting after;
  after.restore_record(before.to_record());
  EXPECT_EQ(after.usage_by_namespace(), before.usage_by_namespace());
  EXPECT_EQ(after.usage_by_device().at(kCharged).total, before.usage_by_device().at(kCharged).total);
  EXPECT_EQ(after.to_record(), before.to_record());
  after.add_unattributed(kCharged, {7, 0s});
  EXPECT_EQ(after.usage_by_device().at(kCharged).pods, before.usage_by_device().at(kCharged).pods)
      << "the holders are not known yet";
  after.add_usage(kCharged, {10, 1s}, shares({{kTrain, 10}}, 0), {10s, true, 1, {{kTrain, 1.0}}});
  EXPECT_EQ(after.usage_by_device().at(kCharged).pods.at(kTrain), (UsageAmount{85, 4s, 20s, 16s}));
}

RC_GTEST_PROP(UsageAccountingProperties, TheSumIsTheDevices, ()) {
  UsageAccounting accounts;
  std::uint64_t energy = 0;
  std::chrono::nanoseconds busy{}, time{};
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
    HeldInterval held{
        std::chrono::nanoseconds(*rc::gen::inRange(0, 1'000'000'000)), *rc::gen::inRange(0, 5) != 0, 1, {}};
    for (const auto& [pod, used] : pods)
      held.parts[pod] = *rc::gen::inRange(0, 100) / 100.0 / static_cast<double>(pods.size());
    time += held.time;
    const auto before = accounts.usage_by_device();
    // Sometimes the agent restarts.
    if (*rc::gen::inRange(0, 5) == 0) {
      const auto read = parse_usage_record(format_usage_record(accounts.to_record()));
      RC_ASSERT(read.has_value());
      accounts.restore_record(*read);
    }
    accounts.add_usage(kCharged, device, of, held);
    const auto& account = accounts.usage_by_device().at(kCharged);
    UsageAmount sum;
    const auto add = [](UsageAmount& to, const UsageAmount& more) {
      to.millijoules += more.millijoules;
      to.busy += more.busy;
      to.held += more.held;
      to.idle += more.idle;
    };
    add(sum, account.unattributed);
    add(sum, account.departed);
    for (const auto& [pod, charge] : account.pods) {
      add(sum, charge);
      RC_ASSERT(charge.idle <= charge.held);
      // Counters only increase.
      if (!before.contains(kCharged) || !before.at(kCharged).pods.contains(pod)) continue;
      RC_ASSERT(charge.millijoules >= before.at(kCharged).pods.at(pod).millijoules);
      RC_ASSERT(charge.busy >= before.at(kCharged).pods.at(pod).busy);
      RC_ASSERT(charge.held >= before.at(kCharged).pods.at(pod).held);
      RC_ASSERT(charge.idle >= before.at(kCharged).pods.at(pod).idle);
    }
    UsageAmount namespaces;
    for (const auto& [name, amount] : accounts.usage_by_namespace()) add(namespaces, amount);
    RC_ASSERT(namespaces == sum);
    RC_ASSERT(account.pods.size() == pods.size());
    RC_ASSERT(sum.millijoules == energy);
    RC_ASSERT(sum.busy == busy);
    RC_ASSERT(sum.held == time);
    RC_ASSERT(account.total == sum);
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

TEST(Usage, HoldersHaveTheirPartOfADevice) {
  const ResourceName gpu("nvidia.com/gpu"), other("nvidia.com/gpu.shared");
  const auto holder = [](const PodName& pod, std::vector<HeldShare> held) {
    return Holder{pod, {"main"}, {}, std::move(held)};
  };
  std::vector<DeviceId> ids;
  for (int i = 0; i < 4; ++i) ids.emplace_back("GPU-0::" + std::to_string(i));
  const auto counts = count_shares({{gpu, ids}, {other, {DeviceId("GPU-0"), DeviceId("GPU-1::0")}}});
  EXPECT_EQ(counts, (ShareCounts{{gpu, {{"GPU-0", 4}}}, {other, {{"GPU-1", 1}}}}));
  struct Row {
    const char* name;
    std::vector<Holder> holders;
    ShareCounts shares;
    std::map<PodName, double> wanted;
  };
  const Row rows[] = {
      {"nobody", {}, counts, {}},
      {"the whole GPU", {holder(kTrain, {{gpu, "main", ""}})}, counts, {{kTrain, 1.0}}},
      {"a share of four", {holder(kTrain, {{gpu, "main", "1"}})}, counts, {{kTrain, 0.25}}},
      {"two containers with one share",
       {holder(kTrain, {{gpu, "a", "1"}, {gpu, "b", "1"}})},
       counts,
       {{kTrain, 0.25}}},
      {"three and one of four",
       {holder(kServe, {{gpu, "main", "3"}}),
        holder(kTrain, {{gpu, "a", "0"}, {gpu, "a", "1"}, {gpu, "b", "2"}})},
       counts,
       {{kServe, 0.25}, {kTrain, 0.75}}},
      {"another plugin's shares",
       {holder(kServe, {{gpu, "main", "7"}}), holder(kTrain, {{gpu, "main", "1"}})},
       {},
       {{kServe, 0.5}, {kTrain, 0.5}}},
      {"one claim of two Pods",
       {holder(kServe, {{gpu, "main", ""}}), holder(kTrain, {{gpu, "main", ""}})},
       counts,
       {{kServe, 0.5}, {kTrain, 0.5}}},
      {"the larger of two resources",
       {holder(kTrain, {{other, "main", "0"}, {gpu, "main", "1"}})},
       counts,
       {{kTrain, 1.0}}},
      {"a MIG device through its GPU", {holder(kTrain, {})}, counts, {{kTrain, 1.0}}},
  };
  for (const auto& row : rows)
    EXPECT_EQ(held_parts(kUsedGpu, row.holders, row.shares), row.wanted) << row.name;
}

TEST(Usage, AMigDeviceIsAPartOfItsGpu) {
  struct Row {
    unsigned gpu_mib, mig_mib, gpu_slices, compute_slices;
    double wanted;
  };
  for (const auto& row :
       {Row{81559, 9984, 1, 1, 0.125}, Row{81559, 40448, 3, 3, 0.5}, Row{81559, 81000, 7, 7, 1},
        Row{81559, 20096, 2, 1, 0.125}, Row{24576, 5952, 1, 1, 0.25}, Row{97887, 100, 1, 1, 0.125},
        Row{0, 9984, 1, 1, 1}}) {
    inventory::Snapshot snapshot;
    snapshot.gpus.resize(1);
    snapshot.gpus[0].memory = mebibytes(row.gpu_mib);
    auto& mig = snapshot.gpus[0].mig_devices.emplace_back();
    mig.uuid = kOne;
    mig.memory = mebibytes(row.mig_mib);
    mig.gpu_slices = row.gpu_slices;
    mig.compute_slices = row.compute_slices;
    EXPECT_DOUBLE_EQ(gpu_part_of(kOne, snapshot), row.wanted) << row.gpu_mib << " " << row.mig_mib;
    EXPECT_DOUBLE_EQ(gpu_part_of(kUsedGpu, snapshot), 1);
  }
}

TEST(Usage, HeldIntervalsAreOfDevicesThatAnswered) {
  const auto intervals = held_intervals(shared_gpu(), {}, holders(kUsedGpu, {kTrain}), {}, 10s);
  ASSERT_EQ(intervals.size(), 1u);
  EXPECT_EQ(intervals.at(kUsedGpu).time, 10s);
  EXPECT_TRUE(intervals.at(kUsedGpu).is_busy_measured);
  EXPECT_EQ(intervals.at(kUsedGpu).parts, (std::map<PodName, double>{{kTrain, 1.0}}));
  auto sample = shared_gpu();
  sample.gpus[0].values.erase(Field::kGpuUtil);
  EXPECT_FALSE(held_intervals(sample, {}, {}, {}, 10s).at(kUsedGpu).is_busy_measured);
  sample.gpus[0].error = Error(Code::kDeviceLost, "lost");
  EXPECT_TRUE(held_intervals(sample, {}, {}, {}, 10s).empty());
  const auto mig = held_intervals(cut_gpu(), {}, holders(kOne, {kTrain}), {}, 10s);
  EXPECT_FALSE(mig.contains(kUsedGpu)) << "its MIG devices count";
  EXPECT_TRUE(mig.at(kOne).is_busy_measured);
  EXPECT_FALSE(mig.at(kTwo).is_busy_measured) << "it shares its GPU instance";
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
