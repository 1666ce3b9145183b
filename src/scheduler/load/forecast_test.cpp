#include "scheduler/load/forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "scheduler/load/test_loads.h"

namespace gpulet::scheduler {
namespace {

using loads::kDay;
using loads::kHour;
using loads::kMinute;
using loads::Service;

// A Monday in 2026, from which the loads count their days.
constexpr std::int64_t kStart = 1'767'571'200;
WallTime at(std::int64_t second) { return WallTime(std::chrono::seconds(kStart + second)); }

constexpr std::int64_t kStep = 5 * kMinute;

// What an autoscaler may rely on: not the level that stands for hours never seen, and not a guess.
TEST(SeasonalModel, KnowsOnlyHoursThatItSaw) {
  SeasonalModel model;
  EXPECT_FALSE(model.has_samples());
  model.seed_hour(12, 40);
  for (std::int64_t now = 9 * kHour; now < 12 * kHour; now += kMinute) {
    model.learn_value(kStart + now, 50);
  }
  EXPECT_TRUE(model.has_samples());
  EXPECT_EQ(model.whole_hours(), 2U) << "the third is not complete";
  const std::int64_t next_day = kStart + kDay;
  EXPECT_NEAR(model.known_at(next_day + 10 * kHour).value_or(-1), 50, 1);
  EXPECT_FALSE(model.known_at(next_day + 9 * kHour)) << "between 8 and 9 h";
  EXPECT_FALSE(model.known_at(next_day + 11 * kHour));
  EXPECT_FALSE(model.known_at(next_day + 12 * kHour + kHour / 2)) << "a guess";
}

TEST(SeasonalModel, SurvivesItsText) {
  SeasonalModel model;
  for (std::int64_t now = 0; now < 9 * kDay; now += 10 * kMinute)
    model.learn_value(kStart + now, static_cast<double>(now / kHour % 24 * 4));
  const std::string text = model.encode();
  auto again = SeasonalModel::decode(text);
  ASSERT_TRUE(again) << again.error().full_message();
  EXPECT_EQ(again->encode(), text);
  EXPECT_EQ(again->whole_hours(), model.whole_hours());
  EXPECT_EQ(again->last_second(), model.last_second());
  for (std::int64_t hour = 6; hour < 30; ++hour) {
    const std::int64_t when = kStart + 9 * kDay + hour * kHour;
    EXPECT_NEAR(again->known_at(when).value_or(-1), model.known_at(when).value_or(-1), 1) << hour;
  }
  EXPECT_EQ(SeasonalModel::decode("12").error().message(),
            "a load model is 512 lower-case hexadecimal digits, found '12'");
  EXPECT_EQ(SeasonalModel::decode(std::string(512, 'f')).error().message(),
            "a load model has a number out of its range");
}

using LoadPolicy = std::function<double(std::int64_t)>;

// Mean absolute errors of hourly forecasts for a day and more, after some weeks of learning.
struct Errors {
  double forecast = 0, last = 0, mean = 0;
};
Errors compare(
    const LoadPolicy& load, std::int64_t learn, std::int64_t measure, std::int64_t ahead,
    const std::function<bool(std::int64_t)>& missing = [](std::int64_t) { return false; }) {
  Forecast forecast;
  double sum = 0;
  double last = 0;
  std::int64_t count = 0;
  struct Pending {
    std::int64_t when = 0;
    double forecast = 0, last = 0, mean = 0;
  };
  std::vector<Pending> pending;
  std::size_t next = 0;
  Errors errors;
  std::size_t measured = 0;
  for (std::int64_t now = 0; now < learn + measure; now += kStep) {
    const double value = load(now);
    while (next < pending.size() && pending[next].when <= now) {
      const Pending& made = pending[next++];
      errors.forecast += std::abs(made.forecast - value);
      errors.last += std::abs(made.last - value);
      errors.mean += std::abs(made.mean - value);
      ++measured;
    }
    if (!missing(now)) {
      forecast.add_load_sample(at(now), value, 0);
      sum += value;
      last = value;
      ++count;
    }
    if (now >= learn - ahead && now % kHour == 0) {
      pending.push_back({now + ahead, forecast.busy_at(at(now + ahead)), last,
                         sum / static_cast<double>(std::max<std::int64_t>(count, 1))});
    }
  }
  EXPECT_GT(measured, 20u);
  const auto each = static_cast<double>(measured);
  return {errors.forecast / each, errors.last / each, errors.mean / each};
}

LoadPolicy sampled(const Service& service, std::uint64_t seed) {
  return [service, random = std::mt19937_64(seed)](std::int64_t second) mutable {
    return service.draw_sample(second, random);
  };
}

TEST(Forecast, BeatsLastValueAndMeanOnDailyLoad) {
  for (const double peak : {3.0, 9.5, 14.0, 22.0}) {
    Service service;
    service.peak_hour = peak;
    for (const std::int64_t hours : {3, 6, 12, 23}) {
      const Errors errors = compare(sampled(service, 1), 7 * kDay, 3 * kDay, hours * kHour);
      EXPECT_LT(errors.forecast, 0.35 * errors.mean) << peak << " h, " << hours << " h ahead";
      EXPECT_LT(errors.forecast, 0.75 * errors.last) << peak << " h, " << hours << " h ahead";
      EXPECT_LT(errors.forecast, 1.3 * service.noise) << "little more than the noise itself";
    }
    EXPECT_LT(compare(sampled(service, 1), 7 * kDay, 3 * kDay, kHour).forecast,
              0.75 * compare(sampled(service, 1), 7 * kDay, 3 * kDay, kHour).last)
        << "an hour ahead too";
  }
}

TEST(Forecast, LearnsWeekends) {
  Service service;
  service.weekend = 0.3;
  // Measured over whole weeks, from the fifth on.
  for (const std::int64_t hours : {6, 12, 24}) {
    const Errors errors = compare(sampled(service, 2), 28 * kDay, 14 * kDay, hours * kHour);
    EXPECT_LT(errors.forecast, 0.4 * errors.mean) << hours;
    EXPECT_LT(errors.forecast, 0.8 * errors.last) << hours;
    EXPECT_LT(errors.forecast, 2 * service.noise) << hours;
  }
}

TEST(Forecast, PredictsTheMeanOfNoise) {
  Service service;
  service.low = service.high = 40;
  service.noise = 15;
  const Errors errors = compare(sampled(service, 3), 7 * kDay, 4 * kDay, 6 * kHour);
  EXPECT_LT(errors.forecast, 1.1 * errors.mean);
  EXPECT_LT(errors.forecast, 0.85 * errors.last);
}

TEST(Forecast, SurvivesGaps) {
  Service service;
  service.weekend = 0.5;
  // No samples between 2 and 11 h on every third day, and one whole day without the agent.
  const auto missing = [](std::int64_t second) {
    const std::int64_t day = second / kDay;
    const std::int64_t hour = second % kDay / kHour;
    return day == 16 || (day % 3 == 0 && hour >= 2 && hour < 11);
  };
  const Errors whole = compare(sampled(service, 4), 21 * kDay, 7 * kDay, 6 * kHour);
  const Errors gaps = compare(sampled(service, 4), 21 * kDay, 7 * kDay, 6 * kHour, missing);
  EXPECT_LT(gaps.forecast, 1.3 * whole.forecast);
  EXPECT_LT(gaps.forecast, 0.6 * gaps.mean);
}

TEST(Forecast, ResistsOutliers) {
  Service service;
  service.high = 50;
  const auto strange = [&](std::int64_t second) {
    static std::mt19937_64 random(5);
    return second / kDay == 10 ? 100.0 : service.draw_sample(second, random);
  };
  Forecast forecast;
  for (std::int64_t now = 0; now < 12 * kDay; now += kStep)
    forecast.add_load_sample(at(now), strange(now), 0);
  const std::int64_t noon = 12 * kDay + 14 * kHour;
  EXPECT_NEAR(forecast.busy_at(at(noon)), 50, 8);
}

TEST(Forecast, FollowsTheCurrentDeviation) {
  Forecast forecast;
  for (std::int64_t now = 0; now < 5 * kDay; now += kStep) forecast.add_load_sample(at(now), 20, 10);
  const std::int64_t end = 5 * kDay;
  for (std::int64_t now = end; now < end + 2 * kHour; now += kStep) forecast.add_load_sample(at(now), 70, 60);
  const std::int64_t now = end + 2 * kHour;
  EXPECT_GT(forecast.busy_at(at(now)), 55);
  EXPECT_GT(forecast.memory_at(at(now)), 45);
  EXPECT_LT(forecast.busy_at(at(now + 18 * kHour)), 30) << "it fades";
}

TEST(Forecast, ExpectsTheLevelOnTheFirstDay) {
  Forecast forecast;
  EXPECT_EQ(forecast.busy_at(at(0)), 0);
  forecast.add_load_sample(at(0), 60, 30);
  EXPECT_NEAR(forecast.busy_at(at(kHour)), 60, 1);
  EXPECT_NEAR(forecast.memory_at(at(12 * kHour)), 30, 1);
  EXPECT_EQ(forecast.daily_curve(at(60)), flat_curve(60, 30));
}

TEST(Forecast, ExpectsTheSamplesOfTheFirstHour) {
  Forecast forecast;
  forecast.add_load_sample(at(0), 0, 10);
  for (std::int64_t second = 1; second < 20; ++second) forecast.add_load_sample(at(second), 100, 10);
  EXPECT_NEAR(forecast.busy_at(at(20)), 95, 2);
  EXPECT_GE(forecast.daily_curve(at(20)).peak(), 90);
}

TEST(Forecast, SamplesReplaceTheGuess) {
  Service service;
  service.peak_hour = 2;
  std::mt19937_64 random(6);
  LoadCurve other;  // a service that is busy by day
  std::fill_n(other.busy.begin() + 3, 4, std::uint8_t{80});
  Forecast published(other);
  EXPECT_NEAR(published.busy_at(at(13 * kHour)), 80, 1);
  for (std::int64_t now = 0; now < 2 * kDay; now += kStep)
    published.add_load_sample(at(now), service.draw_sample(now, random), 0);
  double error = 0;
  for (std::int64_t hour = 0; hour < 24; ++hour) {
    const std::int64_t when = 2 * kDay + hour * kHour;
    error += std::abs(published.busy_at(at(when)) - service.mean(when)) / 24;
  }
  EXPECT_LT(error, 3);
}

TEST(Forecast, CurveHasPartsOfTheDay) {
  Service service;
  service.noise = 0;
  std::mt19937_64 random(7);
  Forecast forecast;
  for (std::int64_t now = 0; now < 10 * kDay; now += kStep)
    forecast.add_load_sample(at(now), service.draw_sample(now, random), 35);
  const LoadCurve curve = forecast.daily_curve(at(10 * kDay + 5 * kHour));
  EXPECT_NEAR(curve.busy[4], 80, 3) << "12 to 15 h";
  EXPECT_NEAR(curve.busy[0], 13, 2) << "0 to 3 h: the first hour is the busiest";
  EXPECT_LT(curve.busy[0], curve.busy[2]);
  EXPECT_EQ(curve.memory, 35);
  // Published and read back after a restart, it continues where it ended.
  const Forecast again(*decode_curve(encode_curve(curve)));
  EXPECT_NEAR(again.busy_at(at(10 * kDay + 13 * kHour + kHour / 2)), curve.busy[4], 1);
  EXPECT_EQ(again.daily_curve(at(10 * kDay)), curve);
}

TEST(Forecast, AcceptsAnyTimeAndNumber) {
  Forecast forecast;
  std::mt19937_64 random(8);
  for (int step = 0; step < 5000; ++step) {
    const auto second = static_cast<std::int64_t>(random() % (400 * kDay)) - 200 * kDay - kStart;
    double value = static_cast<double>(random() % 400) - 100;
    if (step % 17 == 0) value = std::numeric_limits<double>::quiet_NaN();
    if (step % 19 == 0) value = std::numeric_limits<double>::infinity();
    forecast.add_load_sample(at(second), value, -value);
    const double busy = forecast.busy_at(at(static_cast<std::int64_t>(random() % (400 * kDay))));
    ASSERT_GE(busy, 0);
    ASSERT_LE(busy, 100);
    ASSERT_LE(forecast.daily_curve(at(second)).peak(), 100);
  }
}

TEST(Forecast, IsSmall) { EXPECT_LE(sizeof(Forecast), 560u); }

}  // namespace
}  // namespace gpulet::scheduler
