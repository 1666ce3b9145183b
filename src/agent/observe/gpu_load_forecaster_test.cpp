#include "agent/observe/gpu_load_forecaster.h"

#include <gtest/gtest.h>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;

const DeviceUuid kGpu("GPU-1"), kMigDevice("MIG-1");
const WallTime kMonday(std::chrono::seconds(1'767'571'200));  // 2026-01-05T00:00:00Z

metrics::GpuSample gpu_sample(std::uint64_t util) {
  metrics::GpuSample one;
  one.uuid = kGpu;
  one.values = {{Field::kGpuUtil, util},
                {Field::kFbUsed, std::uint64_t{20'000}},
                {Field::kFbFree, std::uint64_t{60'000}}};
  return one;
}
metrics::Attribution held_by(const std::string& pod, const DeviceUuid& device = kGpu) {
  metrics::Attribution uses;
  if (pod.empty()) return uses;
  metrics::PodShare use;
  use.holder.pod = {"team", pod};
  uses.devices[device].pods.push_back(use);
  return uses;
}
scheduler::LoadCurve curve(const GpuLoadForecaster& loads, WallTime now) {
  const auto curves = loads.encoded_curves(now);
  const auto found = curves.find(kGpu);
  return found == curves.end() ? scheduler::LoadCurve{} : scheduler::decode_curve(found->second).value();
}

TEST(GpuLoadForecaster, ForecastsADailyPattern) {
  GpuLoadForecaster loads;
  WallTime now = kMonday;
  for (; now < kMonday + 96h; now += 5min) {
    const auto hour = std::chrono::duration_cast<std::chrono::hours>(now - kMonday).count() % 24;
    loads.add_load_sample({{}, {gpu_sample(hour >= 9 && hour < 18 ? 90 : 5)}}, held_by("serve"), now);
  }
  const auto day = curve(loads, now);
  EXPECT_GE(day.busy[4], 80) << "12 to 15 h";
  EXPECT_LE(day.busy[0], 20) << "0 to 3 h";
  EXPECT_EQ(day.memory, 25);
}

TEST(GpuLoadForecaster, HasNoForecastForAGpuWithoutPods) {
  GpuLoadForecaster loads;
  loads.add_load_sample({{}, {gpu_sample(90)}}, held_by("serve"), kMonday);
  EXPECT_EQ(loads.encoded_curves(kMonday).size(), 1u);
  loads.add_load_sample({{}, {gpu_sample(0)}}, held_by(""), kMonday + 1min);
  EXPECT_TRUE(loads.encoded_curves(kMonday + 1min).empty());
}

TEST(GpuLoadForecaster, KeepsAFailingGpuAndDropsARemovedOne) {
  GpuLoadForecaster loads;
  loads.add_load_sample({{}, {gpu_sample(90)}}, held_by("serve"), kMonday);
  const auto before = loads.encoded_curves(kMonday);
  auto silent = gpu_sample(0);
  silent.error = Error(Code::kDeadlineExceeded, "the driver did not respond");
  loads.add_load_sample({{}, {silent}}, held_by("serve"), kMonday);
  EXPECT_EQ(loads.encoded_curves(kMonday), before);
  loads.add_load_sample({}, {}, kMonday);
  EXPECT_TRUE(loads.encoded_curves(kMonday).empty());
}

// Two Pods on one GPU: "day" is busy from 9 to 18 h, "steady" always a little.
metrics::Attribution shared(double day, double steady, bool known = true) {
  metrics::Attribution uses = held_by("day");
  auto& shares = uses.devices[kGpu];
  shares.pods.push_back(held_by("steady").devices[kGpu].pods.front());
  shares.pods[0].busy = day;
  shares.pods[1].busy = steady;
  shares.is_busy_known = known;
  return uses;
}

TEST(GpuLoadForecaster, APodThatLeavesTakesItsPartWithIt) {
  GpuLoadForecaster loads;
  WallTime now = kMonday;
  for (; now < kMonday + 96h; now += 5min) {
    const auto hour = std::chrono::duration_cast<std::chrono::hours>(now - kMonday).count() % 24;
    const double day = hour >= 9 && hour < 18 ? 70 : 0;
    loads.add_load_sample({{}, {gpu_sample(static_cast<std::uint64_t>(day) + 20)}}, shared(day, 20), now);
  }
  const auto both = curve(loads, now);
  EXPECT_NEAR(both.busy[4], 90, 5) << "12 to 15 h";
  EXPECT_NEAR(both.busy[0], 20, 5) << "0 to 3 h";
  loads.add_load_sample({{}, {gpu_sample(20)}}, held_by("steady"), now);
  for (const auto part : curve(loads, now).busy) EXPECT_NEAR(part, 20, 5);
  loads.add_load_sample({{}, {gpu_sample(60)}}, held_by("other"), now + 5min);
  for (const auto part : curve(loads, now + 5min).busy) EXPECT_NEAR(part, 60, 5) << "nothing of the last one";
}

TEST(GpuLoadForecaster, TheSumOverPodsIsTheUseOfTheGpu) {
  for (const bool known : {true, false}) {
    GpuLoadForecaster loads;
    loads.add_load_sample({{}, {gpu_sample(80)}}, shared(30, 10, known), kMonday);
    for (const auto part : curve(loads, kMonday).busy) EXPECT_NEAR(part, 80, 2) << known;
    EXPECT_NEAR(curve(loads, kMonday).memory, 25, 2);
  }
}

TEST(GpuLoadForecaster, TheLoadIsTheGreaterOfNowAndTheNextHours) {
  GpuLoadForecaster loads;
  EXPECT_TRUE(loads.gpu_loads(kMonday).empty());
  WallTime now = kMonday;
  for (; now < kMonday + 79h; now += 5min) {
    const auto hour = std::chrono::duration_cast<std::chrono::hours>(now - kMonday).count() % 24;
    loads.add_load_sample({{}, {gpu_sample(hour >= 9 && hour < 18 ? 90 : 5)}}, held_by("serve"), now);
  }
  now -= 5min;  // of the last sample
  // At 7 h two hours before the peak, and at 0 h far from it.
  EXPECT_EQ(loads.gpu_loads(now).at(kGpu), (placement::GpuLoad{90, 25, false}));
  GpuLoadForecaster night = loads;
  night.add_load_sample({{}, {gpu_sample(5)}}, held_by("serve"), kMonday + 96h);
  EXPECT_LE(night.gpu_loads(kMonday + 96h).at(kGpu).busy_percent, 20);
  loads.add_load_sample({{}, {gpu_sample(100)}}, held_by(""), now);
  EXPECT_EQ(loads.gpu_loads(now).at(kGpu).busy_percent, 100) << "without any Pod";
  auto failed = gpu_sample(0);
  failed.error = Error(Code::kDeadlineExceeded, "the driver did not respond");
  loads.add_load_sample({{}, {failed}}, held_by(""), now + 15s);
  EXPECT_EQ(loads.gpu_loads(now + 15s).at(kGpu).busy_percent, 100) << "a slow answer";
  EXPECT_TRUE(loads.gpu_loads(now + 61s).empty()) << "not known any more";
}

double day_of(WallTime now) {
  const auto hour = std::chrono::duration_cast<std::chrono::hours>(now - kMonday).count() % 24;
  return hour >= 9 && hour < 18 ? 90 : 5;
}
// A node on which "web", a Deployment, ran for so long.
GpuLoadForecaster after(Duration time, const std::string& pod) {
  GpuLoadForecaster loads;
  for (WallTime now = kMonday; now < kMonday + time; now += 5min)
    loads.add_load_sample({{}, {gpu_sample(static_cast<std::uint64_t>(day_of(now)))}}, held_by(pod), now);
  return loads;
}

TEST(GpuLoadForecaster, APodStartsWithTheLoadOfItsPredecessors) {
  GpuLoadForecaster loads = after(96h, "web-6d4cf56db6-x2x9k");
  const WallTime night = kMonday + 96h;
  ASSERT_EQ(loads.controllers().known_loads().size(), 1U);
  EXPECT_EQ(loads.controllers().known_loads().front().controller, "team/web");
  // A new version of it, with another hash, after an hour without any.
  loads.add_load_sample({{}, {gpu_sample(0)}}, held_by(""), night);
  loads.add_load_sample({{}, {gpu_sample(5)}}, held_by("web-7c6b9b4b5f-bcdfg"), night + 1h);
  EXPECT_GE(curve(loads, night + 1h).busy[4], 80) << "12 to 15 h";
  EXPECT_LE(curve(loads, night + 1h).busy[0], 20) << "0 to 3 h";
  loads.add_load_sample({{}, {gpu_sample(5)}}, held_by("other-7c6b9b4b5f-bcdfg"), night + 1h);
  EXPECT_LE(curve(loads, night + 1h).peak(), 20) << "another service";
}

TEST(GpuLoadForecaster, ReplacedPodsKeepAddingToWhatIsKnown) {
  GpuLoadForecaster loads;
  WallTime now = kMonday;
  for (int pod = 0; now < kMonday + 30h; now += 5min) {
    if ((now - kMonday) % 2h == 0h) ++pod;  // each lives for two hours
    loads.add_load_sample({{}, {gpu_sample(50)}}, held_by("job-" + std::to_string(pod)), now);
  }
  EXPECT_TRUE(loads.controllers().known_loads().empty()) << "no Pod saw a day, and none inherited one";
  GpuLoadForecaster known = after(48h, "web-0");
  const auto before = known.controllers().known_loads().front().hours;
  for (now = kMonday + 48h; now < kMonday + 54h; now += 5min)
    known.add_load_sample({{}, {gpu_sample(5)}}, held_by("web-1"), now);
  EXPECT_GT(known.controllers().known_loads().front().hours, before);
}

TEST(GpuLoadForecaster, APodStartsWithWhatAnotherNodeKnows) {
  const auto elsewhere = after(96h, "web-0").controllers().known_loads();
  const WallTime night = kMonday + 96h;
  GpuLoadForecaster loads;
  loads.add_load_sample({{}, {gpu_sample(5)}}, held_by("web-1"), night);
  EXPECT_LE(curve(loads, night).peak(), 20);
  loads.add_controllers(elsewhere, night);
  EXPECT_GE(curve(loads, night).busy[4], 80) << "12 to 15 h";
  // Once it has its own hours, they count.
  GpuLoadForecaster own = after(4h, "web-1");
  const auto day = own.encoded_curves(kMonday + 4h);
  own.add_controllers(elsewhere, kMonday + 4h);
  EXPECT_EQ(own.encoded_curves(kMonday + 4h), day);
}

TEST(GpuLoadForecaster, TheHorizonsSeeThePeakComing) {
  const GpuLoadForecaster none;
  EXPECT_TRUE(none.horizon_forecasts(kMonday).empty());
  GpuLoadForecaster loads = after(72h, "web-0");
  const WallTime seven = kMonday + 79h;
  loads.add_load_sample({{}, {gpu_sample(5)}}, held_by("web-0"), seven);
  const auto found = loads.horizon_forecasts(seven).at(kGpu);
  EXPECT_LE(found.gpu[0].busy, 20) << "15m";
  EXPECT_LE(found.gpu[1].busy, 20) << "1h";
  EXPECT_GE(found.gpu[2].busy, 80) << "3h";
  EXPECT_NEAR(found.gpu[2].memory, 25, 1);
  EXPECT_DOUBLE_EQ(found.pods.at({"team", "web-0"})[2].busy, found.gpu[2].busy);
  EXPECT_TRUE(loads.horizon_forecasts(seven + 3h).empty()) << "no samples any more";
  loads.add_load_sample({{}, {gpu_sample(5)}}, held_by(""), seven);
  EXPECT_TRUE(loads.horizon_forecasts(seven).empty()) << "no Pod";
}

TEST(GpuLoadForecaster, KnowsGpusHeldOutsidePods) {
  const auto is_held = [](bool outside, std::optional<Bytes> memory) {
    auto gpu = gpu_sample(0);
    gpu.processes.push_back({.pid = 812, .memory = memory, .is_outside_pods = outside});
    GpuLoadForecaster loads;
    loads.add_load_sample({{}, {gpu}}, held_by(""), kMonday);
    return loads.gpu_loads(kMonday).at(kGpu).held_outside_pods;
  };
  constexpr Bytes kGib{std::uint64_t{1} << 30};
  EXPECT_TRUE(is_held(true, kGib));
  EXPECT_FALSE(is_held(false, kGib));
  EXPECT_FALSE(is_held(true, std::nullopt)) << "its memory is not known";
  EXPECT_FALSE(is_held(true, Bytes{std::uint64_t{4} << 20})) << "a display server";
}

TEST(GpuLoadForecaster, WeightsMigInstancesBySlices) {
  GpuLoadForecaster loads;
  auto cut = gpu_sample(0);
  cut.values.erase(Field::kGpuUtil);
  cut.mig = true;
  metrics::InstanceSample instance;
  instance.profile = "3g.40gb";
  instance.values = {{Field::kGraphicsActive, 0.7}};
  instance.devices.push_back({kMigDevice, 0, {}});
  cut.instances.push_back(instance);
  loads.add_load_sample({{}, {cut}}, held_by("serve", kMigDevice), kMonday + 13h);
  EXPECT_EQ(curve(loads, kMonday + 13h).busy[4], 30);
}

// For rebalancing: what cannot be attributed is unknown, and so is the forecast before a Pod's first hour.
TEST(GpuLoadForecaster, UsesOfAGpuSayWhatIsKnown) {
  GpuLoadForecaster loads;
  loads.add_load_sample({{}, {gpu_sample(90)}}, shared(70, 20), kMonday);
  auto use = loads.gpu_uses(kMonday, 30min).at(kGpu);
  EXPECT_EQ(use.busy, 90);
  EXPECT_EQ(use.later, std::nullopt);
  EXPECT_EQ(use.pods.at({"team", "day"}).busy, 70);
  EXPECT_EQ(use.pods.at({"team", "steady"}).busy, 20);
  EXPECT_EQ(use.pods.at({"team", "steady"}).day.busy[5], 20) << "as now, until it was seen for an hour";
  EXPECT_TRUE(loads.gpu_uses(kMonday + 2min, 30min).empty()) << "no sample for long";

  loads.add_load_sample({{}, {gpu_sample(90)}}, shared(70, 20, false), kMonday + 1min);
  use = loads.gpu_uses(kMonday + 1min, 30min).at(kGpu);
  EXPECT_EQ(use.pods.at({"team", "day"}).busy, std::nullopt);

  auto silent = gpu_sample(0);
  silent.values.erase(Field::kGpuUtil);
  loads.add_load_sample({{}, {silent}}, shared(0, 0), kMonday + 2min);
  EXPECT_EQ(loads.gpu_uses(kMonday + 2min, 30min).at(kGpu).busy, std::nullopt);

  WallTime now = kMonday + 3min;
  for (; now < kMonday + 3h; now += 1min) loads.add_load_sample({{}, {gpu_sample(90)}}, shared(70, 20), now);
  now -= 1min;
  use = loads.gpu_uses(now, 30min).at(kGpu);
  ASSERT_TRUE(use.later);
  EXPECT_NEAR(*use.later, 90, 2);
}

}  // namespace
}  // namespace gpulet::agent
