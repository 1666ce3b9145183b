#include "base/wall_time.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"

namespace gpulet {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kForm = "0000-00-00T00:00:00.000Z";

}  // namespace

std::string wall_text(WallTime wall) {
  const auto bounded = std::clamp(wall, kFirstWallTime, kLastWallTime);
  const auto day = std::chrono::floor<std::chrono::days>(bounded);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss time(std::chrono::floor<milliseconds>(bounded - day));
  char text[48];
  std::snprintf(text, sizeof text, "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
                static_cast<int>(time.seconds().count()), static_cast<int>(time.subseconds().count()));
  return text;
}

std::int64_t unix_milliseconds(WallTime wall) {
  return std::chrono::floor<milliseconds>(wall).time_since_epoch().count();
}

std::optional<WallTime> parse_wall_text(std::string_view text) {
  if (text.size() != kForm.size()) return std::nullopt;
  for (std::size_t i = 0; i < kForm.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kForm[i] == '0' ? !digit : text[i] != kForm[i]) return std::nullopt;
  }
  const auto number = [&](std::size_t from, std::size_t count) {
    return static_cast<unsigned>(text::parse_unsigned(text.substr(from, count)).value_or(0));
  };
  const std::chrono::year_month_day date(std::chrono::year(static_cast<int>(number(0, 4))),
                                         std::chrono::month(number(5, 2)), std::chrono::day(number(8, 2)));
  if (!date.ok() || date.year() < std::chrono::year(1970) || date.year() > std::chrono::year(2261))
    return std::nullopt;
  if (number(11, 2) > 23 || number(14, 2) > 59 || number(17, 2) > 59) return std::nullopt;
  const WallTime wall = std::chrono::sys_days(date) + std::chrono::hours(number(11, 2)) +
                        std::chrono::minutes(number(14, 2)) + std::chrono::seconds(number(17, 2)) +
                        milliseconds(number(20, 3));
  if (wall > kLastWallTime) return std::nullopt;
  return wall;
}

}  // namespace gpulet
