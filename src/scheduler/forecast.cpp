#include "scheduler/forecast.h"

#include <algorithm>
#include <cmath>

namespace gpulet::scheduler {
namespace {

constexpr std::int64_t kHour = 3600;
constexpr double kUnit = 256;  // of what is stored in 16 bits
// What one hour teaches at least: an hour of the day is learnt anew within ten days, one of the week within
// five weeks.
constexpr double kHourRate = 0.1;
constexpr double kWeekRate = 0.2;
constexpr double kErrorRate = 0.05;
constexpr double kLevelRate = 0.1;
constexpr double kFirstError = 10;  // percent, before anything is known
// An hour counts as no farther off than so many usual errors.
constexpr double kOutlier = 3;
constexpr double kOutlierFloor = 5;  // percent
// The deviation follows the samples of the last hour, and is forgotten within a few.
constexpr double kDeviationMemory = 1.0 * kHour;
constexpr double kDeviationFades = 4.0 * kHour;

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
std::size_t cyclic(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>((a % b + b) % b); }

std::size_t hour_of_day(std::int64_t hour) { return cyclic(hour, 24); }
std::size_t part_of_week(std::int64_t hour) {
  return cyclic(floor_div(hour, 24), 7) * kDayParts + hour_of_day(hour) * kDayParts / 24;
}

template <class Int>
Int stored(double percent, double least) {
  return static_cast<Int>(std::lround(std::clamp(percent, least, 100.0) * kUnit));
}

std::uint8_t one_more(std::uint8_t seen) { return static_cast<std::uint8_t>(std::min(seen + 1, 255)); }

std::uint8_t rounded(double percent) {
  return static_cast<std::uint8_t>(std::lround(std::clamp(percent, 0.0, 100.0)));
}

}  // namespace

Season::Season() { hours_.fill(kUnknown); }

double Season::usual(std::int64_t hour) const {
  const std::size_t slot = hour_of_day(hour);
  const double base = hours_[slot] == kUnknown ? static_cast<double>(level_) : hours_[slot] / kUnit;
  return base + week_[part_of_week(hour)] / kUnit;
}

double Season::expected(std::int64_t second) const {
  // Between the middles of two hours.
  const std::int64_t shifted = second - kHour / 2;
  const std::int64_t hour = floor_div(shifted, kHour);
  const double part = static_cast<double>(shifted - hour * kHour) / kHour;
  const double usually = (1 - part) * usual(hour) + part * usual(hour + 1);
  const double away = static_cast<double>(std::max<std::int64_t>(second - last_, 0));
  return std::clamp(usually + static_cast<double>(deviation_) * std::exp(-away / kDeviationFades), 0.0,
                    100.0);
}

void Season::add(std::int64_t second, double percent) {
  if (count_ > 0 && floor_div(second, kHour) != floor_div(last_, kHour)) close_hour();
  const bool first = closed_ == 0 && count_ == 0;
  sum_ += static_cast<float>(percent);
  ++count_;
  // Until an hour is over, what there is of it is all that is known.
  if (closed_ == 0) level_ = sum_ / static_cast<float>(count_);
  // The longer since the last sample, the more this one says about now.
  const double step = first ? 0 : static_cast<double>(std::max<std::int64_t>(second - last_, 0));
  const double kept = std::exp(-step / kDeviationMemory);
  last_ = second;
  const double off = percent - usual(floor_div(second, kHour));
  deviation_ = static_cast<float>(kept * static_cast<double>(deviation_) + (1 - kept) * off);
}

void Season::close_hour() {
  const double mean = static_cast<double>(sum_) / count_;
  const std::int64_t hour = floor_div(last_, kHour);
  const std::size_t slot = hour_of_day(hour);
  const std::size_t part = part_of_week(hour);
  sum_ = 0;
  count_ = 0;
  if (closed_ == 0) usual_error_ = static_cast<float>(kFirstError);
  ++closed_;
  level_ += static_cast<float>(kLevelRate * (mean - static_cast<double>(level_)));
  double error = mean - usual(hour);
  usual_error_ += static_cast<float>(kErrorRate * (std::abs(error) - static_cast<double>(usual_error_)));
  if (hours_seen_[slot] == 0) {
    hours_[slot] = stored<std::uint16_t>(mean - week_[part] / kUnit, 0);
    hours_seen_[slot] = 1;
    return;
  }
  if (hours_seen_[slot] > 1) {
    const double most = std::max(kOutlierFloor, kOutlier * static_cast<double>(usual_error_));
    error = std::clamp(error, -most, most);
  }
  const double hour_rate = std::max(kHourRate, 1.0 / (hours_seen_[slot] + 1));
  // A part of the week has three hours: each teaches a third.
  const double week_rate = std::max(kWeekRate, 1.0 / (week_seen_[part] / 3 + 2)) / 3;
  hours_[slot] = stored<std::uint16_t>(hours_[slot] / kUnit + hour_rate * error, 0);
  week_[part] = stored<std::int16_t>(week_[part] / kUnit + week_rate * error, -100);
  hours_seen_[slot] = one_more(hours_seen_[slot]);
  week_seen_[part] = one_more(week_seen_[part]);
}

void Season::guess(std::size_t hour, double percent) { hours_[hour] = stored<std::uint16_t>(percent, 0); }

Forecast::Forecast(const LoadCurve& guess) {
  for (std::size_t hour = 0; hour < 24; ++hour) {
    busy_.guess(hour, guess.busy[hour * kDayParts / 24]);
    memory_.guess(hour, guess.memory);
  }
}

std::int64_t Forecast::seconds(WallTime when) {
  return std::chrono::floor<std::chrono::seconds>(when.time_since_epoch()).count();
}

void Forecast::add(WallTime at, double busy_percent, double memory_percent) {
  if (std::isfinite(busy_percent)) busy_.add(seconds(at), std::clamp(busy_percent, 0.0, 100.0));
  if (std::isfinite(memory_percent)) memory_.add(seconds(at), std::clamp(memory_percent, 0.0, 100.0));
}

LoadCurve Forecast::curve(WallTime now) const {
  const std::int64_t start = seconds(now);
  LoadCurve curve;
  for (std::int64_t ahead = 0; ahead < 24; ++ahead) {
    // The middle of each coming hour; of the present one, what is left of it.
    const std::int64_t hour = floor_div(start, kHour) + ahead;
    const std::int64_t when = std::max(start, hour * kHour + kHour / 2);
    std::uint8_t& part = curve.busy[hour_of_day(hour) * kDayParts / 24];
    part = std::max(part, rounded(busy_.expected(when)));
    curve.memory = std::max(curve.memory, rounded(memory_.expected(when)));
  }
  return curve;
}

}  // namespace gpulet::scheduler
