#include "agent/gpu_loads.h"

#include <gtest/gtest.h>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

const DeviceUuid kGpu("GPU-1"), kMigDevice("MIG-1");
const WallTime kMonday(std::chrono::seconds(1'767'571'200));  // 2026-01-05T00:00:00Z

metrics::GpuSample gpu(std::uint64_t util) {
  metrics::GpuSample one;
  one.uuid = kGpu;
  one.values = {{Field::kGpuUtil, util},
                {Field::kFbUsed, std::uint64_t{20'000}},
                {Field::kFbFree, std::uint64_t{60'000}}};
  return one;
}
metrics::Uses held_by(const std::string& pod, const DeviceUuid& device = kGpu) {
  metrics::Uses uses;
  if (pod.empty()) return uses;
  metrics::PodUse use;
  use.holder.pod = {"team", pod};
  uses.devices[device].pods.push_back(use);
  return uses;
}
scheduler::LoadCurve curve(const GpuLoads& loads, WallTime now) {
  const auto curves = loads.curves(now);
  const auto found = curves.find(kGpu);
  return found == curves.end() ? scheduler::LoadCurve{} : scheduler::decode_curve(found->second).value();
}

TEST(GpuLoads, ADayThatReturnsIsExpected) {
  GpuLoads loads;
  WallTime now = kMonday;
  for (; now < kMonday + 96h; now += 5min) {
    const auto hour = std::chrono::duration_cast<std::chrono::hours>(now - kMonday).count() % 24;
    loads.add({{}, {gpu(hour >= 9 && hour < 18 ? 90 : 5)}}, held_by("serve"), now);
  }
  const auto day = curve(loads, now);
  EXPECT_GE(day.busy[4], 80) << "12 to 15 h";
  EXPECT_LE(day.busy[0], 20) << "0 to 3 h";
  EXPECT_EQ(day.memory, 25);
}

TEST(GpuLoads, OfAGpuThatNobodyHoldsNothingIsExpected) {
  GpuLoads loads;
  loads.add({{}, {gpu(90)}}, held_by("serve"), kMonday);
  EXPECT_EQ(loads.curves(kMonday).size(), 1u);
  loads.add({{}, {gpu(0)}}, held_by(""), kMonday + 1min);
  EXPECT_TRUE(loads.curves(kMonday + 1min).empty());
}

TEST(GpuLoads, OneThatDoesNotAnswerIsAsItWasAndOneThatIsGoneIsForgotten) {
  GpuLoads loads;
  loads.add({{}, {gpu(90)}}, held_by("serve"), kMonday);
  const auto before = loads.curves(kMonday);
  auto silent = gpu(0);
  silent.failed = Error(Code::kDeadlineExceeded, "the driver has not answered");
  loads.add({{}, {silent}}, held_by("serve"), kMonday);
  EXPECT_EQ(loads.curves(kMonday), before);
  loads.add({}, {}, kMonday);
  EXPECT_TRUE(loads.curves(kMonday).empty());
}

TEST(GpuLoads, OtherHoldersAreLearntAnew) {
  GpuLoads loads;
  WallTime now = kMonday;
  for (; now < kMonday + 72h; now += 15min) loads.add({{}, {gpu(90)}}, held_by("busy"), now);
  EXPECT_GE(curve(loads, now).peak(), 80);
  // The first hours of the next one count more than days of the one before.
  for (const auto until = now + 26h; now < until; now += 15min)
    loads.add({{}, {gpu(5)}}, held_by("idle"), now);
  EXPECT_LE(curve(loads, now).peak(), 30);
}

TEST(GpuLoads, MigInstancesCountByTheirSlices) {
  GpuLoads loads;
  auto cut = gpu(0);
  cut.values.erase(Field::kGpuUtil);
  cut.mig = true;
  metrics::InstanceSample instance;
  instance.profile = "3g.40gb";
  instance.values = {{Field::kGraphicsActive, 0.7}};
  instance.devices.push_back({kMigDevice, 0, {}});
  cut.instances.push_back(instance);
  loads.add({{}, {cut}}, held_by("serve", kMigDevice), kMonday + 13h);
  EXPECT_EQ(curve(loads, kMonday + 13h).busy[4], 30);
}

}  // namespace
}  // namespace gpulet::agent
