#include "agent/observe/sample_trends.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using metrics::Field;
using nlohmann::json;

constexpr std::chrono::seconds kDay = 24h;
// A whole number of every step.
constexpr WallTime kTrendStart{std::chrono::duration_cast<WallTime::duration>(1'760'000'400s)};

metrics::GpuSample gpu_sample(const std::string& uuid, std::uint64_t util) {
  metrics::GpuSample gpu;
  gpu.uuid = DeviceUuid(uuid);
  gpu.values = {{Field::kGpuUtil, util}, {Field::kFbUsed, std::uint64_t{1600}}, {Field::kPower, 300.4}};
  return gpu;
}
metrics::Sample sample_of(std::vector<metrics::GpuSample> gpus) {
  metrics::Sample sample;
  sample.gpus = std::move(gpus);
  return sample;
}

json ring_of(const SampleTrends& trends, std::size_t ring, WallTime at) {
  return json::parse(trends.trends_json(at))["rings"][ring];
}

TEST(SampleTrends, HasTheMeanOfEachCompleteBucket) {
  SampleTrends trends;
  EXPECT_FALSE(trends.add_sample(sample_of({gpu_sample("GPU-a", 10)}), kTrendStart));
  EXPECT_FALSE(trends.add_sample(sample_of({gpu_sample("GPU-a", 31)}), kTrendStart + 30s));
  EXPECT_EQ(ring_of(trends, 0, kTrendStart)["gpus"]["GPU-a"]["util"], json::array());
  EXPECT_TRUE(trends.add_sample(sample_of({gpu_sample("GPU-a", 90)}), kTrendStart + 60s));
  const json ring = ring_of(trends, 0, kTrendStart + 60s);
  EXPECT_EQ(ring["step"], 60);
  EXPECT_EQ(ring["last"], 1'760'000'400'000);
  EXPECT_EQ(ring["gpus"]["GPU-a"],
            json::parse(R"({"util":[21],"memory":[1600],"power":[300],"temperature":[null]})"));
  // The coarser rings have no complete bucket yet, and then the mean of all three samples.
  EXPECT_EQ(ring_of(trends, 1, kTrendStart)["gpus"]["GPU-a"]["util"], json::array());
  trends.add_sample(sample_of({gpu_sample("GPU-a", 0)}), kTrendStart + 180s);
  EXPECT_EQ(ring_of(trends, 1, kTrendStart)["gpus"]["GPU-a"]["util"], json::array({44}));
}

TEST(SampleTrends, TimesWithoutSamplesAreUnknown) {
  SampleTrends trends;
  trends.add_sample(sample_of({gpu_sample("GPU-a", 10)}), kTrendStart);
  trends.add_sample(sample_of({gpu_sample("GPU-a", 20)}), kTrendStart + 3min);
  auto failed = gpu_sample("GPU-a", 99);
  failed.error = Error(Code::kDeadlineExceeded, "it hangs");
  trends.add_sample(sample_of({failed}), kTrendStart + 4min);
  trends.add_sample(sample_of({gpu_sample("GPU-a", 30)}), kTrendStart + 5min);
  trends.add_sample(sample_of({gpu_sample("GPU-a", 40)}), kTrendStart + 6min);
  EXPECT_EQ(ring_of(trends, 0, kTrendStart)["gpus"]["GPU-a"]["util"],
            json::parse("[10, null, null, 20, null, 30]"));
  // Longer than the finest ring: nothing of it is left there, but in the ring of a day.
  trends.add_sample(sample_of({gpu_sample("GPU-a", 50)}), kTrendStart + 5h);
  trends.add_sample(sample_of({gpu_sample("GPU-a", 60)}), kTrendStart + 5h + 1min);
  EXPECT_EQ(ring_of(trends, 0, kTrendStart)["gpus"]["GPU-a"]["util"], json::array({50}));
  EXPECT_EQ(ring_of(trends, 2, kTrendStart)["gpus"]["GPU-a"]["util"].size(), 30u);
  EXPECT_EQ(ring_of(trends, 2, kTrendStart)["gpus"]["GPU-a"]["util"][0], 25);
}

TEST(SampleTrends, ReachesBackADayInFixedMemory) {
  static_assert(8 * SampleTrends::kTrendBytesPerGpu < 24u << 10);
  SampleTrends trends;
  std::vector<metrics::GpuSample> gpus;
  for (int i = 0; i < 8; ++i) {
    gpus.push_back(gpu_sample("GPU-0000000" + std::to_string(i) + "-1111-2222-3333-444444444444", 100));
    gpus.back().values[Field::kFbUsed] = std::uint64_t{1'000'000};
    gpus.back().values[Field::kPower] = 1234.5;
    gpus.back().values[Field::kGpuTemp] = std::uint64_t{101};
  }
  const auto sample = sample_of(std::move(gpus));
  for (std::chrono::seconds age{}; age <= 2 * kDay; age += 15s) trends.add_sample(sample, kTrendStart + age);
  const std::string text = trends.trends_json(kTrendStart + 2 * kDay);
  EXPECT_LT(text.size(), 8 * kTrendJsonBytesPerGpu);
  const json rings = json::parse(text)["rings"];
  for (std::size_t i = 0; i < kTrendRings.size(); ++i) {
    for (const auto& [uuid, gpu] : rings[i]["gpus"].items()) {
      EXPECT_EQ(gpu["util"].size(), kTrendRings[i].buckets - 1) << uuid;
      for (const auto& value : gpu["memory"]) EXPECT_EQ(value, 1'000'000);
    }
  }
}

TEST(SampleTrends, ForgetsGpusThatHaveGone) {
  SampleTrends trends;
  trends.add_sample(sample_of({gpu_sample("GPU-a", 10), gpu_sample("GPU-b", 10)}), kTrendStart);
  trends.add_sample(sample_of({gpu_sample("GPU-b", 10)}), kTrendStart + kDay);
  EXPECT_TRUE(ring_of(trends, 0, kTrendStart)["gpus"].contains("GPU-a"));
  trends.add_sample(sample_of({gpu_sample("GPU-b", 10)}), kTrendStart + kDay + 1s);
  EXPECT_FALSE(ring_of(trends, 0, kTrendStart)["gpus"].contains("GPU-a"));
  std::vector<metrics::GpuSample> many;
  for (std::size_t i = 0; i < 2 * kMaxTrendGpus; ++i) many.push_back(gpu_sample(std::to_string(i), 1));
  trends.add_sample(sample_of(std::move(many)), kTrendStart + kDay + 2s);
  EXPECT_EQ(ring_of(trends, 0, kTrendStart)["gpus"].size(), kMaxTrendGpus);
}

TEST(SampleTrends, BeginsAgainWhenTheClockIsSetBack) {
  SampleTrends trends;
  trends.add_sample(sample_of({gpu_sample("GPU-a", 10)}), kTrendStart + 1h);
  trends.add_sample(sample_of({gpu_sample("GPU-a", 10)}), kTrendStart + 1h + 60s);
  // By a few seconds: into the bucket that is open.
  trends.add_sample(sample_of({gpu_sample("GPU-a", 30)}), kTrendStart + 1h + 55s);
  trends.add_sample(sample_of({gpu_sample("GPU-a", 10)}), kTrendStart + 1h + 120s);
  EXPECT_EQ(ring_of(trends, 0, kTrendStart)["gpus"]["GPU-a"]["util"], json::array({10, 20}));
  trends.add_sample(sample_of({gpu_sample("GPU-a", 70)}), kTrendStart);
  EXPECT_EQ(ring_of(trends, 0, kTrendStart)["gpus"]["GPU-a"]["util"], json::array());
  trends.add_sample(sample_of({gpu_sample("GPU-a", 70)}), kTrendStart + 60s);
  EXPECT_EQ(ring_of(trends, 0, kTrendStart)["gpus"]["GPU-a"]["util"], json::array({70}));
}

}  // namespace
}  // namespace gpulet::agent
