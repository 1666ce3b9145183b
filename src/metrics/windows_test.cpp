#include "metrics/windows.h"

#include <gtest/gtest.h>

namespace gpulet::metrics {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kFirst("GPU-1"), kSecond("GPU-2");
constexpr Time kStart{1h};

Sample sample_of(std::uint64_t reasons = 0, const std::vector<unsigned>& instances = {}) {
  Sample sample;
  for (const auto& uuid : {kFirst, kSecond}) {
    GpuSample gpu;
    gpu.uuid = uuid;
    gpu.values[Field::kClockEvents] = reasons;
    for (const unsigned id : instances) gpu.instances.push_back({id, "1g.10gb", {}, {}, {}, {}});
    sample.gpus.push_back(gpu);
  }
  return sample;
}

Windows of_a_minute() {
  Windows windows;
  windows.use({60s, 60s});
  return windows;
}

Sample filled(Windows& windows, Time now, Sample sample = sample_of()) {
  windows.fill(sample, now);
  return sample;
}

TEST(Windows, TheLastXidStaysAndItsCountGoes) {
  Windows windows = of_a_minute();
  EXPECT_EQ(filled(windows, kStart).gpus[0].xid, (LastXid{0, "No Error"}));
  windows.xid(kFirst, {}, 31, "page fault", kStart + 1s);
  windows.xid(kFirst, {}, 31, "page fault", kStart + 1100ms);
  windows.xid(kFirst, {}, 13, "exception", kStart + 30s);
  auto sample = filled(windows, kStart + 31s);
  EXPECT_EQ(sample.windows.xids, 60s);
  EXPECT_EQ(sample.gpus[0].xid, (LastXid{13, "exception"}));
  EXPECT_EQ(sample.gpus[0].counts.xids, (std::map<std::uint64_t, std::uint64_t>{{13, 1}, {31, 2}}));
  EXPECT_EQ(sample.gpus[1].xid.code, 0u);
  EXPECT_TRUE(sample.gpus[1].counts.xids.empty());
  EXPECT_EQ(filled(windows, kStart + 60999ms).gpus[0].counts.xids.size(), 2u);
  EXPECT_EQ(filled(windows, kStart + 61s).gpus[0].counts.xids,
            (std::map<std::uint64_t, std::uint64_t>{{13, 1}}));
  sample = filled(windows, kStart + 2min);
  EXPECT_TRUE(sample.gpus[0].counts.xids.empty());
  EXPECT_EQ(sample.gpus[0].xid, (LastXid{13, "exception"}));
}

TEST(Windows, AStormIsCountedWhole) {
  Windows windows = of_a_minute();
  for (int i = 0; i < 100'000; ++i) windows.xid(kFirst, {}, 31, "x", kStart + std::chrono::microseconds(i));
  EXPECT_EQ(filled(windows, kStart + 1s).gpus[0].counts.xids.at(31), 100'000u);
}

TEST(Windows, GpuInstancesHaveTheirOwnAndTheGpus) {
  Windows windows = of_a_minute();
  windows.xid(kFirst, {}, 79, "off the bus", kStart);
  windows.xid(kFirst, 3, 31, "page fault", kStart);
  const auto sample = filled(windows, kStart + 1s, sample_of(0, {3, 4}));
  EXPECT_EQ(sample.gpus[0].instances[0].xid.code, 31u);
  EXPECT_EQ(sample.gpus[0].instances[1].xid.code, 79u);
  EXPECT_EQ(sample.gpus[0].instances[0].counts.xids, (std::map<std::uint64_t, std::uint64_t>{{31, 1}}));
  // Destroyed and made again: another one.
  filled(windows, kStart + 2s, sample_of(0, {4}));
  EXPECT_EQ(filled(windows, kStart + 3s, sample_of(0, {3, 4})).gpus[0].instances[0].xid.code, 79u);
}

TEST(Windows, SamplesWithAClockEvent) {
  EXPECT_EQ(clock_events(0x1ff),
            (std::vector<std::string>{"gpu_idle", "clocks_setting", "power_cap", "hw_slowdown", "sync_boost",
                                      "sw_thermal", "hw_thermal", "hw_power_brake", "display_clocks"}));
  EXPECT_TRUE(clock_events(1 << 20).empty());
  Windows windows = of_a_minute();
  filled(windows, kStart, sample_of(0x4));
  filled(windows, kStart + 15s, sample_of(0x4 | 0x20));
  const auto sample = filled(windows, kStart + 30s, sample_of(0));
  EXPECT_EQ(sample.gpus[0].counts.clock_events,
            (std::map<std::string, std::uint64_t>{{"power_cap", 2}, {"sw_thermal", 1}}));
  EXPECT_EQ(filled(windows, kStart + 60s).gpus[0].counts.clock_events,
            (std::map<std::string, std::uint64_t>{{"power_cap", 1}, {"sw_thermal", 1}}));
}

TEST(Windows, XidsAndClocksHaveTheirOwn) {
  Windows windows;
  windows.use({10s, 60s});
  windows.xid(kFirst, {}, 31, "page fault", kStart);
  filled(windows, kStart, sample_of(0x4));
  const auto sample = filled(windows, kStart + 30s);
  EXPECT_TRUE(sample.gpus[0].counts.xids.empty());
  EXPECT_EQ(sample.gpus[0].counts.clock_events.at("power_cap"), 1u);
  EXPECT_EQ(sample.windows.xids, 10s);
  EXPECT_EQ(sample.windows.clock_events, 60s);
}

TEST(Windows, AGpuThatIsGoneIsForgotten) {
  Windows windows = of_a_minute();
  windows.xid(kFirst, {}, 31, "x", kStart);
  Sample other;
  filled(windows, kStart + 1s, other);
  EXPECT_EQ(filled(windows, kStart + 2s).gpus[0].xid.code, 0u);
}

}  // namespace
}  // namespace gpulet::metrics
