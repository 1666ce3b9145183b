// What a GPU will be used for by one who holds it, learnt from what it was used for: a load that returns
// every day, a week that has its own days, and what is unusual just now.
//
// Expected = the usual of that hour of the day + how that part of that day of the week differs from it + the
// present deviation, which fades. Each is a running mean over whole hours, so that neither the rate of
// samples nor a gap matters; an hour far off what is usual counts only as far as unusual hours go, so that
// one outlier teaches little.
//
// State: sizeof(Forecast) ≤ 560 bytes, no memory besides. Cost: ~20 ns a sample (scheduler_bench). Pure: time
// is handed in. Accuracy on synthetic loads: forecast_test.
#pragma once

#include <array>
#include <cstdint>

#include "base/loop.h"
#include "scheduler/load_curve.h"

namespace gpulet::scheduler {

// Of one quantity in percent. Hours and days are UTC's: a local pattern is the same one, shifted.
class Season {
 public:
  Season();
  void add(std::int64_t second, double percent);
  // 0 to 100. Before the first sample: 0.
  double expected(std::int64_t second) const;
  // As if every day had been so; the first hour of its kind that comes takes its place.
  void guess(std::size_t hour, double percent);

 private:
  static constexpr std::size_t kHours = 24;
  static constexpr std::uint16_t kUnknown = 0xFFFF;
  static constexpr std::size_t kWeekParts = 7 * kDayParts;

  void close_hour();
  double usual(std::int64_t hour) const;  // hours since 1970; without the present deviation

  // 1/256 percent, which a running mean of small steps needs.
  std::array<std::uint16_t, kHours> hours_{};
  std::array<std::int16_t, kWeekParts> week_{};    // how it differs from hours_
  std::array<std::uint8_t, kHours> hours_seen_{};  // 0: a guess, or unknown
  std::array<std::uint8_t, kWeekParts> week_seen_{};
  float level_ = 0;        // mean of recent hours: for hours that were never seen
  float usual_error_ = 0;  // mean size of the difference between an hour and what was expected
  float deviation_ = 0;    // of the last samples from the usual
  float sum_ = 0;          // of the hour that is not over
  std::uint32_t count_ = 0;
  std::uint32_t closed_ = 0;  // hours learnt from
  std::int64_t last_ = 0;     // second of the last sample
};

class Forecast {
 public:
  Forecast() = default;
  // Begins with a guess, such as what a task like it did.
  explicit Forecast(const LoadCurve& guess);

  // One sample: how busy the GPU was and how much of its memory was held, in percent (cut to 0 … 100; what is
  // no number is passed over). Times may come with gaps; one that is before the last is taken as it is.
  void add(WallTime at, double busy_percent, double memory_percent);

  double busy_at(WallTime when) const { return busy_.expected(seconds(when)); }
  double memory_at(WallTime when) const { return memory_.expected(seconds(when)); }

  // The coming 24 hours: of each part of the day the busiest hour, of memory the greatest.
  LoadCurve curve(WallTime now) const;

 private:
  static std::int64_t seconds(WallTime when);

  Season busy_;
  Season memory_;
};

}  // namespace gpulet::scheduler
