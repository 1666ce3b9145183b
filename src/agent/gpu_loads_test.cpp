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

// Two Pods on one GPU: "day" is busy from 9 to 18 h, "steady" always a little.
metrics::Uses shared(double day, double steady, bool known = true) {
  metrics::Uses uses = held_by("day");
  auto& shares = uses.devices[kGpu];
  shares.pods.push_back(held_by("steady").devices[kGpu].pods.front());
  shares.pods[0].busy = day;
  shares.pods[1].busy = steady;
  shares.busy_known = known;
  return uses;
}

TEST(GpuLoads, APodThatLeavesTakesItsPartWithIt) {
  GpuLoads loads;
  WallTime now = kMonday;
  for (; now < kMonday + 96h; now += 5min) {
    const auto hour = std::chrono::duration_cast<std::chrono::hours>(now - kMonday).count() % 24;
    const double day = hour >= 9 && hour < 18 ? 70 : 0;
    loads.add({{}, {gpu(static_cast<std::uint64_t>(day) + 20)}}, shared(day, 20), now);
  }
  const auto both = curve(loads, now);
  EXPECT_NEAR(both.busy[4], 90, 5) << "12 to 15 h";
  EXPECT_NEAR(both.busy[0], 20, 5) << "0 to 3 h";
  loads.add({{}, {gpu(20)}}, held_by("steady"), now);
  for (const auto part : curve(loads, now).busy) EXPECT_NEAR(part, 20, 5);
  loads.add({{}, {gpu(60)}}, held_by("other"), now + 5min);
  for (const auto part : curve(loads, now + 5min).busy) EXPECT_NEAR(part, 60, 5) << "nothing of the last one";
}

TEST(GpuLoads, TheSumIsTheGpusWhoeverUsesIt) {
  for (const bool known : {true, false}) {
    GpuLoads loads;
    loads.add({{}, {gpu(80)}}, shared(30, 10, known), kMonday);
    for (const auto part : curve(loads, kMonday).busy) EXPECT_NEAR(part, 80, 2) << known;
    EXPECT_NEAR(curve(loads, kMonday).memory, 25, 2);
  }
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
