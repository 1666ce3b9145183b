#include "metrics_api/demand_forecast.h"

#include <gtest/gtest.h>

namespace gpulet::metrics_api {
namespace {

using namespace std::chrono_literals;

const WallTime kMonday(std::chrono::seconds(1'767'571'200));  // 2026-01-05T00:00:00Z

// 60 % of a GPU by night, 420 % from 9 to 18 h.
double demand_at(WallTime now) {
  const auto hour = std::chrono::duration_cast<std::chrono::hours>(now - kMonday).count() % 24;
  return hour >= 9 && hour < 18 ? 420 : 60;
}
DemandForecasts after(Duration time) {
  DemandForecasts forecasts;
  for (WallTime now = kMonday; now < kMonday + time; now += 15s)
    forecasts.add_sample("team app=web", now, demand_at(now));
  return forecasts;
}

TEST(DemandForecasts, SeeTheDailyPeakComing) {
  const DemandForecasts forecasts = after(24h + 7h);
  const WallTime seven = kMonday + 31h;
  EXPECT_NEAR(forecasts.greatest_demand("team app=web", seven, 1h).value_or(-1), 60, 30);
  EXPECT_NEAR(forecasts.greatest_demand("team app=web", seven, 3h).value_or(-1), 420, 5);
  EXPECT_NEAR(forecasts.greatest_demand("team app=web", seven, 0h).value_or(-1), 60, 5);
  EXPECT_NEAR(forecasts.greatest_demand("team app=web", seven, 1000h).value_or(-1), 420, 5);
}

TEST(DemandForecasts, AreUnknownForWhatWasNeverSeen) {
  EXPECT_FALSE(DemandForecasts().greatest_demand("team app=web", kMonday, 1h));
  const DemandForecasts forecasts = after(12h);
  EXPECT_FALSE(forecasts.greatest_demand("team app=web", kMonday + 12h, 3h)) << "the first afternoon";
  EXPECT_FALSE(forecasts.greatest_demand("team app=other", kMonday + 12h, 3h));
}

TEST(DemandForecasts, ForgetTheLongestUnused) {
  DemandForecasts forecasts;
  for (std::size_t i = 0; i <= kMaxServices; ++i)
    forecasts.add_sample(std::to_string(i), kMonday + std::chrono::seconds(i), 50);
  EXPECT_EQ(forecasts.service_count(), kMaxServices);
}

TEST(DemandForecasts, TheRecordKeepsWhatWasLearnedForLonger) {
  DemandForecasts old = after(48h), young = after(30h), none;
  const WallTime now = kMonday + 48h;
  auto record = old.merge_record({{"demand-1", "x"}, {"demand-2", "team app=web\n00"}}, now);
  ASSERT_EQ(record.size(), 3U);
  EXPECT_EQ(record["demand-1"], "");
  EXPECT_EQ(record["demand-2"], "");
  std::erase_if(record, [](const auto& entry) { return entry.second.empty(); });
  EXPECT_TRUE(old.merge_record(record, now).empty()) << "written once";
  EXPECT_TRUE(none.merge_record(record, now).empty());
  EXPECT_NEAR(none.greatest_demand("team app=web", now + 7h, 3h).value_or(-1), 420, 5);
  EXPECT_TRUE(young.merge_record(record, now).empty());
  EXPECT_EQ(after(72h).merge_record(record, now).size(), 1U) << "known for longer here";
  auto late = DemandForecasts().merge_record(record, now + kRecordLifetime + 1h);
  ASSERT_EQ(late.size(), 1U);
  EXPECT_EQ(late.begin()->second, "") << "nobody asks any more";
}

TEST(DemandForecasts, AreBounded) {
  DemandForecasts forecasts;
  for (WallTime now = kMonday; now < kMonday + 30h; now += 1min) forecasts.add_sample("a", now, 1e9);
  EXPECT_NEAR(forecasts.greatest_demand("a", kMonday + 30h, 1h).value_or(-1), kMaxDemandGpus * 100, 1);
}

// An autoscaler multiplies their mean by their number: it sees the demand, and never less than now.
TEST(RaiseToSum, KeepsEachValueAndReachesTheSum) {
  std::vector<PodValue> values = {{"a", 80, {}}, {"b", 20, {}}};
  raise_to_sum(values, 90);
  EXPECT_EQ(values[0].value, 80);
  EXPECT_EQ(values[1].value, 20);
  raise_to_sum(values, 400);
  EXPECT_EQ(values[0].value, 230);
  EXPECT_EQ(values[1].value, 170);
  values.clear();
  raise_to_sum(values, 400);
  EXPECT_TRUE(values.empty());
}

}  // namespace
}  // namespace gpulet::metrics_api
