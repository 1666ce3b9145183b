#include "scheduler/load/forecast.h"

#include <algorithm>
#include <cmath>

namespace gpulet::scheduler {
namespace {

constexpr std::size_t kDigits = 2 * (kDayParts + 1);
constexpr std::string_view kHex = "0123456789abcdef";

std::uint8_t clamp_percent(unsigned percent) { return static_cast<std::uint8_t>(std::min(percent, 255u)); }

void append_hex(std::string& text, std::uint8_t value) {
  text += kHex[value >> 4];
  text += kHex[value & 15];
}

}  // namespace

LoadCurve operator+(const LoadCurve& a, const LoadCurve& b) {
  LoadCurve sum;
  for (std::size_t part = 0; part < kDayParts; ++part) {
    sum.busy[part] = clamp_percent(unsigned{a.busy[part]} + b.busy[part]);
  }
  sum.memory = clamp_percent(unsigned{a.memory} + b.memory);
  return sum;
}

LoadCurve flat_curve(unsigned busy_percent, unsigned memory_percent) {
  LoadCurve curve;
  curve.busy.fill(clamp_percent(busy_percent));
  curve.memory = clamp_percent(memory_percent);
  return curve;
}

std::string encode_curve(const LoadCurve& curve) {
  std::string text;
  text.reserve(kDigits);
  for (const std::uint8_t part : curve.busy) append_hex(text, part);
  append_hex(text, curve.memory);
  return text;
}

Result<LoadCurve> decode_curve(std::string_view text) {
  std::array<std::uint8_t, kDayParts + 1> bytes{};
  bool good = text.size() == kDigits;
  for (std::size_t at = 0; good && at < kDigits; ++at) {
    const std::size_t digit = kHex.find(text[at]);
    good = digit != std::string_view::npos;
    bytes[at / 2] = static_cast<std::uint8_t>(bytes[at / 2] << 4 | (good ? digit : 0));
  }
  if (!good) {
    return fail(Code::kInvalidArgument, "a load curve is " + std::to_string(kDigits) +
                                            " lower-case hexadecimal digits, found '" +
                                            std::string(text.substr(0, 2 * kDigits)) + "'");
  }
  LoadCurve curve;
  std::copy_n(bytes.begin(), kDayParts, curve.busy.begin());
  curve.memory = bytes[kDayParts];
  return curve;
}

namespace {

constexpr std::int64_t kHour = 3600;
constexpr double kUnit = 256;  // fixed-point scale of the 16-bit values
// The least weight of one hour: an hour of the day is relearnt within ten days, a part of the week within
// five weeks.
constexpr double kHourRate = 0.1;
constexpr double kWeekRate = 0.2;
constexpr double kErrorRate = 0.05;
constexpr double kLevelRate = 0.1;
constexpr double kFirstError = 10;  // percent, before any sample
// An hour counts as at most this many usual errors off.
constexpr double kOutlier = 3;
constexpr double kOutlierFloor = 5;  // percent
// The deviation follows the samples of the last hour and fades within a few.
constexpr double kDeviationMemory = 1.0 * kHour;
constexpr double kDeviationFades = 4.0 * kHour;

std::int64_t floor_div(std::int64_t a, std::int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
std::size_t positive_modulo(std::int64_t a, std::int64_t b) {
  return static_cast<std::size_t>((a % b + b) % b);
}

std::size_t hour_of_day(std::int64_t hour) { return positive_modulo(hour, 24); }
std::size_t part_of_week(std::int64_t hour) {
  return positive_modulo(floor_div(hour, 24), 7) * kDayParts + hour_of_day(hour) * kDayParts / 24;
}

template <class Int>
Int to_fixed_point(double percent, double least) {
  return static_cast<Int>(std::lround(std::clamp(percent, least, 100.0) * kUnit));
}

std::uint8_t saturating_increment(std::uint8_t seen) {
  return static_cast<std::uint8_t>(std::min(seen + 1, 255));
}

std::uint8_t round_percent(double percent) {
  return static_cast<std::uint8_t>(std::lround(std::clamp(percent, 0.0, 100.0)));
}

}  // namespace

namespace {

constexpr std::size_t kModelBytes = 256;

// An unsigned number of `size` bytes, the highest first.
void append_number_hex(std::string& text, std::uint64_t value, std::size_t size) {
  while (size-- > 0) append_hex(text, static_cast<std::uint8_t>(value >> (8 * size)));
}
// The same from the front of `text`, whose digits are valid.
std::uint64_t take_number_hex(std::string_view& text, std::size_t size) {
  std::uint64_t value = 0;
  for (const char digit : text.substr(0, 2 * size)) value = value << 4 | kHex.find(digit);
  text.remove_prefix(2 * size);
  return value;
}

}  // namespace

std::string SeasonalModel::encode() const {
  std::string text;
  text.reserve(2 * kModelBytes);
  for (const auto hour : hours_) append_number_hex(text, hour, 2);
  for (const auto part : week_) append_number_hex(text, static_cast<std::uint16_t>(part), 2);
  for (const auto seen : hours_seen_) append_hex(text, seen);
  for (const auto seen : week_seen_) append_hex(text, seen);
  append_number_hex(text, to_fixed_point<std::uint16_t>(static_cast<double>(level_), 0), 2);
  append_number_hex(text, to_fixed_point<std::uint16_t>(static_cast<double>(usual_error_), 0), 2);
  append_number_hex(text, closed_, 4);
  append_number_hex(text, static_cast<std::uint64_t>(last_), 8);
  return text;
}

Result<SeasonalModel> SeasonalModel::decode(std::string_view text) {
  if (text.size() != 2 * kModelBytes || text.find_first_not_of(kHex) != std::string_view::npos) {
    return fail(Code::kInvalidArgument, "a load model is " + std::to_string(2 * kModelBytes) +
                                            " lower-case hexadecimal digits, found '" +
                                            std::string(text.substr(0, 2 * kDigits)) + "'");
  }
  constexpr std::uint64_t kMost = 100 * static_cast<std::uint64_t>(kUnit);
  constexpr std::int64_t kFarthest = std::int64_t{1} << 40;  // seconds
  SeasonalModel model;
  bool good = true;
  for (auto& hour : model.hours_) {
    hour = static_cast<std::uint16_t>(take_number_hex(text, 2));
    good = good && (hour == kUnknown || hour <= kMost);
  }
  for (auto& part : model.week_) {
    part = static_cast<std::int16_t>(static_cast<std::uint16_t>(take_number_hex(text, 2)));
    good = good && std::abs(int{part}) <= static_cast<int>(kMost);
  }
  for (auto& seen : model.hours_seen_) seen = static_cast<std::uint8_t>(take_number_hex(text, 1));
  for (auto& seen : model.week_seen_) seen = static_cast<std::uint8_t>(take_number_hex(text, 1));
  const std::uint64_t level = take_number_hex(text, 2), error = take_number_hex(text, 2);
  model.level_ = static_cast<float>(static_cast<double>(level) / kUnit);
  model.usual_error_ = static_cast<float>(static_cast<double>(error) / kUnit);
  model.closed_ = static_cast<std::uint32_t>(take_number_hex(text, 4));
  model.last_ = static_cast<std::int64_t>(take_number_hex(text, 8));
  good = good && level <= kMost && error <= kMost && std::abs(model.last_) <= kFarthest;
  if (!good) return fail(Code::kInvalidArgument, "a load model has a number out of its range");
  return model;
}

SeasonalModel::SeasonalModel() { hours_.fill(kUnknown); }

double SeasonalModel::usual_at(std::int64_t hour) const {
  const std::size_t slot = hour_of_day(hour);
  const double base = hours_[slot] == kUnknown ? static_cast<double>(level_) : hours_[slot] / kUnit;
  return base + week_[part_of_week(hour)] / kUnit;
}

double SeasonalModel::expected_at(std::int64_t second) const {
  // Interpolated between the middles of two hours.
  const std::int64_t shifted = second - kHour / 2;
  const std::int64_t hour = floor_div(shifted, kHour);
  const double part = static_cast<double>(shifted - hour * kHour) / kHour;
  const double usually = (1 - part) * usual_at(hour) + part * usual_at(hour + 1);
  const double away = static_cast<double>(std::max<std::int64_t>(second - last_, 0));
  return std::clamp(usually + static_cast<double>(deviation_) * std::exp(-away / kDeviationFades), 0.0,
                    100.0);
}

std::optional<double> SeasonalModel::known_at(std::int64_t second) const {
  const std::int64_t hour = floor_div(second - kHour / 2, kHour);
  if (hours_seen_[hour_of_day(hour)] == 0 || hours_seen_[hour_of_day(hour + 1)] == 0) return std::nullopt;
  return expected_at(second);
}

void SeasonalModel::learn_value(std::int64_t second, double percent) {
  if (count_ > 0 && floor_div(second, kHour) != floor_div(last_, kHour)) close_hour();
  const bool first = closed_ == 0 && count_ == 0;
  sum_ += static_cast<float>(percent);
  ++count_;
  // Until the first hour is complete, its samples are all there is.
  if (closed_ == 0) level_ = sum_ / static_cast<float>(count_);
  // The longer the gap since the last sample, the more this sample counts.
  const double step = first ? 0 : static_cast<double>(std::max<std::int64_t>(second - last_, 0));
  const double remaining = std::exp(-step / kDeviationMemory);
  last_ = second;
  const double off = percent - usual_at(floor_div(second, kHour));
  deviation_ = static_cast<float>(remaining * static_cast<double>(deviation_) + (1 - remaining) * off);
}

void SeasonalModel::close_hour() {
  const double mean = static_cast<double>(sum_) / count_;
  const std::int64_t hour = floor_div(last_, kHour);
  const std::size_t slot = hour_of_day(hour);
  const std::size_t part = part_of_week(hour);
  sum_ = 0;
  count_ = 0;
  if (closed_ == 0) usual_error_ = static_cast<float>(kFirstError);
  ++closed_;
  level_ += static_cast<float>(kLevelRate * (mean - static_cast<double>(level_)));
  double error = mean - usual_at(hour);
  usual_error_ += static_cast<float>(kErrorRate * (std::abs(error) - static_cast<double>(usual_error_)));
  if (hours_seen_[slot] == 0) {
    hours_[slot] = to_fixed_point<std::uint16_t>(mean - week_[part] / kUnit, 0);
    hours_seen_[slot] = 1;
    return;
  }
  if (hours_seen_[slot] > 1) {
    const double most = std::max(kOutlierFloor, kOutlier * static_cast<double>(usual_error_));
    error = std::clamp(error, -most, most);
  }
  const double hour_rate = std::max(kHourRate, 1.0 / (hours_seen_[slot] + 1));
  // A part of the week has three hours: each counts a third.
  const double week_rate = std::max(kWeekRate, 1.0 / (week_seen_[part] / 3 + 2)) / 3;
  hours_[slot] = to_fixed_point<std::uint16_t>(hours_[slot] / kUnit + hour_rate * error, 0);
  week_[part] = to_fixed_point<std::int16_t>(week_[part] / kUnit + week_rate * error, -100);
  hours_seen_[slot] = saturating_increment(hours_seen_[slot]);
  week_seen_[part] = saturating_increment(week_seen_[part]);
}

void SeasonalModel::seed_hour(std::size_t hour, double percent) {
  hours_[hour] = to_fixed_point<std::uint16_t>(percent, 0);
}

Forecast::Forecast(const LoadCurve& guess) {
  for (std::size_t hour = 0; hour < 24; ++hour) {
    busy_.seed_hour(hour, guess.busy[hour * kDayParts / 24]);
    memory_.seed_hour(hour, guess.memory);
  }
}

std::int64_t Forecast::unix_seconds(WallTime when) {
  return std::chrono::floor<std::chrono::seconds>(when.time_since_epoch()).count();
}

void Forecast::add_load_sample(WallTime at, double busy_percent, double memory_percent) {
  if (std::isfinite(busy_percent)) busy_.learn_value(unix_seconds(at), std::clamp(busy_percent, 0.0, 100.0));
  if (std::isfinite(memory_percent))
    memory_.learn_value(unix_seconds(at), std::clamp(memory_percent, 0.0, 100.0));
}

LoadCurve Forecast::daily_curve(WallTime now) const {
  const std::int64_t start = unix_seconds(now);
  LoadCurve curve;
  for (std::int64_t ahead = 0; ahead < 24; ++ahead) {
    // The middle of each coming hour; for the current one, the rest of it.
    const std::int64_t hour = floor_div(start, kHour) + ahead;
    const std::int64_t when = std::max(start, hour * kHour + kHour / 2);
    std::uint8_t& part = curve.busy[hour_of_day(hour) * kDayParts / 24];
    part = std::max(part, round_percent(busy_.expected_at(when)));
    curve.memory = std::max(curve.memory, round_percent(memory_.expected_at(when)));
  }
  return curve;
}

}  // namespace gpulet::scheduler
