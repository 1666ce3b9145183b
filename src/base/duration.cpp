#include "base/duration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/text.h"

namespace gpulet {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t nanoseconds;
};
// Longer names first: "ms" is not "m".
constexpr std::array<Unit, 8> kDurationUnits = {{{"ns", 1},
                                                 {"us", 1'000},
                                                 {"\xc2\xb5s", 1'000},  // U+00B5
                                                 {"\xce\xbcs", 1'000},  // U+03BC
                                                 {"ms", 1'000'000},
                                                 {"s", 1'000'000'000},
                                                 {"m", 60'000'000'000},
                                                 {"h", 3'600'000'000'000}}};

// Removes one "<number><unit>" from the front of `rest` and returns it in nanoseconds.
std::optional<std::int64_t> take_part(std::string_view& rest) {
  std::uint64_t whole = 0;
  double fraction = 0;
  double scale = 1;
  bool any = false;
  for (; !rest.empty() && text::is_digit(rest.front()); rest.remove_prefix(1), any = true) {
    if (whole > std::numeric_limits<std::int64_t>::max() / 10) return std::nullopt;
    whole = whole * 10 + static_cast<std::uint64_t>(rest.front() - '0');
  }
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    for (; !rest.empty() && text::is_digit(rest.front()); rest.remove_prefix(1), any = true) {
      scale /= 10;
      fraction += scale * (rest.front() - '0');
    }
  }
  if (!any) return std::nullopt;
  for (const auto& unit : kDurationUnits) {
    if (!text::starts_with(rest, unit.name)) continue;
    const auto after = rest.substr(unit.name.size());
    if (!after.empty() && !text::is_digit(after.front()) && after.front() != '.') continue;
    rest = after;
    const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / unit.nanoseconds);
    if (whole > most) return std::nullopt;
    const auto full = static_cast<std::int64_t>(whole) * unit.nanoseconds;
    const auto part =
        static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(unit.nanoseconds)));
    if (part > std::numeric_limits<std::int64_t>::max() - full) return std::nullopt;
    return full + part;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::chrono::nanoseconds> parse_duration(std::string_view text) {
  bool negative = false;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    negative = text.front() == '-';
    text.remove_prefix(1);
  }
  if (text == "0") return std::chrono::nanoseconds{};
  if (text.empty()) return std::nullopt;
  std::int64_t sum = 0;
  while (!text.empty()) {
    const auto part = take_part(text);
    if (!part || *part > std::numeric_limits<std::int64_t>::max() - sum) return std::nullopt;
    sum += *part;
  }
  return std::chrono::nanoseconds(negative ? -sum : sum);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  auto rest = duration.count();
  if (rest == 0) return "0s";
  std::string out = rest < 0 ? "-" : "";
  // The most negative count has no opposite; one nanosecond less is near enough.
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  if (rest < 0) rest = rest == kLeast ? std::numeric_limits<std::int64_t>::max() : -rest;
  for (const auto& [name, size] : {kDurationUnits[7], kDurationUnits[6], kDurationUnits[5], kDurationUnits[4],
                                   kDurationUnits[1], kDurationUnits[0]}) {
    if (rest < size) continue;
    out += std::to_string(rest / size) + std::string(name);
    rest %= size;
  }
  return out;
}

}  // namespace gpulet
