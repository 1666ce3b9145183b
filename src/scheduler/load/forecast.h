// Load curves, and the forecasts that they are made from.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::scheduler {

// The expected load of a GPU over the coming day in nine bytes: published by agents, summed by policies.

// Parts are cut at UTC hours 0, 3, 6, … and not from "now" on, so a curve stays valid as it ages and curves
// of different times can be added.
inline constexpr std::size_t kDayParts = 8;

struct LoadCurve {
  std::array<std::uint8_t, kDayParts>
      busy{};               // percent of the GPU's time in each part, 0 to 100 (sums up to 255)
  std::uint8_t memory = 0;  // percent of its memory, the maximum of the day
  friend bool operator==(const LoadCurve&, const LoadCurve&) = default;

  std::uint8_t peak() const { return *std::max_element(busy.begin(), busy.end()); }
};

// Two loads on one GPU; each number saturates at 255.
LoadCurve operator+(const LoadCurve& a, const LoadCurve& b);
// A constant load. Percents above 255 are 255.
LoadCurve flat_curve(unsigned busy_percent, unsigned memory_percent);

// 18 hexadecimal digits: the parts from 0 h UTC on, then memory.
std::string encode_curve(const LoadCurve& curve);
// Errors: kInvalidArgument with the input, for anything that encode_curve does not write.
Result<LoadCurve> decode_curve(std::string_view text);

// Forecasts the load of a GPU from its past use: a daily pattern, a weekly pattern, and the current
// deviation.
//
// expected = usual for the hour of the day + difference of that part of that weekday + current deviation,
// which fades. Each is a running mean over whole hours, so neither the sampling rate nor gaps matter. An
// hour far off the usual is clipped to a multiple of the usual error, so one outlier has little effect.
//
// State: sizeof(Forecast) ≤ 560 bytes, no heap. Cost: ~20 ns per sample (scheduler_bench). Pure: time is
// passed in. Accuracy on synthetic loads: forecast_test.

// A seasonal model of one quantity in percent. Hours and days are UTC; a local pattern is the same, shifted.
class SeasonalModel {
 public:
  SeasonalModel();
  void learn_value(std::int64_t second, double percent);
  // 0 to 100; 0 before the first sample.
  double expected_at(std::int64_t second) const;
  // nullopt for an hour of the day of which no whole one was seen.
  std::optional<double> known_at(std::int64_t second) const;
  bool has_samples() const { return closed_ != 0 || count_ != 0; }
  std::uint32_t whole_hours() const { return closed_; }  // so far
  std::int64_t last_second() const { return last_; }
  // All but the current hour and the current deviation, as 512 lower-case hexadecimal digits.
  std::string encode() const;
  // Errors: kInvalidArgument for anything that encode() does not write.
  static Result<SeasonalModel> decode(std::string_view text);
  // Sets an initial value, as if every day had been like this; the first real hour replaces it.
  void seed_hour(std::size_t hour, double percent);

 private:
  static constexpr std::size_t kHours = 24;
  static constexpr std::uint16_t kUnknown = 0xFFFF;
  static constexpr std::size_t kWeekParts = 7 * kDayParts;

  void close_hour();
  double usual_at(std::int64_t hour) const;  // hours since 1970; without the current deviation

  // In 1/256 percent: a running mean takes small steps.
  std::array<std::uint16_t, kHours> hours_{};
  std::array<std::int16_t, kWeekParts> week_{};    // difference from hours_
  std::array<std::uint8_t, kHours> hours_seen_{};  // 0: a guess, or unknown
  std::array<std::uint8_t, kWeekParts> week_seen_{};
  float level_ = 0;        // mean of recent hours, for hours never seen
  float usual_error_ = 0;  // mean absolute difference between an hour and its expectation
  float deviation_ = 0;    // of recent samples from the usual
  float sum_ = 0;          // of the current hour
  std::uint32_t count_ = 0;
  std::uint32_t closed_ = 0;  // complete hours so far
  std::int64_t last_ = 0;     // time of the last sample, in seconds
};

class Forecast {
 public:
  Forecast() = default;
  // Starts from a guess, such as the load of a similar task.
  explicit Forecast(const LoadCurve& guess);

  // Adds one sample: GPU utilization and memory in percent, clamped to 0…100; NaN is skipped. Samples may
  // have gaps; one that is older than the last is accepted.
  void add_load_sample(WallTime at, double busy_percent, double memory_percent);

  double busy_at(WallTime when) const { return busy_.expected_at(unix_seconds(when)); }
  double memory_at(WallTime when) const { return memory_.expected_at(unix_seconds(when)); }

  bool has_samples() const { return busy_.has_samples(); }
  std::uint32_t whole_hours() const { return busy_.whole_hours(); }  // that it has learned from

  // The coming 24 hours: the busiest hour of each part of the day, and the greatest memory.
  LoadCurve daily_curve(WallTime now) const;

 private:
  static std::int64_t unix_seconds(WallTime when);

  SeasonalModel busy_;
  SeasonalModel memory_;
};

}  // namespace gpulet::scheduler
