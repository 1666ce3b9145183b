#include "base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numeric>

namespace gpulet::text {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  std::size_t start = 0;
  for (;;) {
    const auto end = text.find(separator, start);
    if (end == std::string_view::npos) break;
    parts.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  parts.emplace_back(text.substr(start));
  return parts;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string joined;
  for (const auto& part : parts) {
    if (&part != &parts.front()) joined += separator;
    joined += part;
  }
  return joined;
}

std::string join_limited(std::span<const std::string> parts, std::size_t limit) {
  if (parts.size() <= limit) return join(parts, ", ");
  return join(parts.first(limit), ", ") + " and " + std::to_string(parts.size() - limit) + " more";
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string shown(text.substr(0, limit));
  for (char& byte : shown) {
    if (byte < ' ' || byte > '~') byte = '?';
  }
  return shown;
}

std::string count_text(std::size_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

std::optional<std::string> decode_percent(std::string_view text, bool plus_is_blank) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += plus_is_blank && text[i] == '+' ? ' ' : text[i];
      continue;
    }
    unsigned byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (read.ec != std::errc() || read.ptr != digits.data() + 2) return std::nullopt;
    decoded += static_cast<char>(byte);
    i += 2;
  }
  return decoded;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

std::optional<std::uint64_t> parse_unsigned(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

namespace {

constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string encode_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto three = bytes.substr(i, 3);
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < three.size() ? static_cast<unsigned char>(three[j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      text += j <= three.size() ? kBase64Digits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

std::string decode_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  std::uint32_t group = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool padded = i >= text.size() - padding;
    const auto digit = padded ? 0 : kBase64Digits.find(text[i]);
    if (digit == std::string_view::npos) return {};
    group = group << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(group >> shift & 0xFF);
    group = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  const unsigned second = byte(1);
  const bool wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                     (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
  return wrong ? 0 : length;
}

namespace {

// Insertions, deletions, replacements and swaps of neighbours.
std::size_t edits(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1), before(row.size());
  std::iota(row.begin(), row.end(), std::size_t{0});
  const auto same = [&](std::size_t i, std::size_t j) {
    return std::tolower(static_cast<unsigned char>(a[i])) == std::tolower(static_cast<unsigned char>(b[j]));
  };
  for (std::size_t i = 0; i < a.size(); ++i) {
    const auto last = row;
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({row[j] + 1, last[j + 1] + 1, last[j] + (same(i, j) ? 0 : 1)});
      const bool swapped = i > 0 && j > 0 && same(i, j - 1) && same(i - 1, j);
      if (swapped) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
    before = last;
  }
  return row.back();
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  const std::size_t limit = std::clamp<std::size_t>(word.size() / 3, 1, 3);
  std::optional<std::string> best;
  std::size_t fewest = limit + 1;
  for (const auto& candidate : candidates) {
    // At least the difference in length; `word` may be any text.
    const auto shorter = std::min(word.size(), candidate.size());
    if (std::max(word.size(), candidate.size()) - shorter >= fewest) continue;
    const std::size_t count = edits(word, candidate);
    if (count < fewest) {
      fewest = count;
      best = candidate;
    }
  }
  return best;
}

}  // namespace gpulet::text

namespace gpulet {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kWallTimePattern = "0000-00-00T00:00:00.000Z";

}  // namespace

std::string format_wall_time(WallTime wall) {
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

std::optional<WallTime> parse_wall_time(std::string_view text) {
  if (text.size() != kWallTimePattern.size()) return std::nullopt;
  for (std::size_t i = 0; i < kWallTimePattern.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (kWallTimePattern[i] == '0' ? !digit : text[i] != kWallTimePattern[i]) return std::nullopt;
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

std::size_t display_width(const std::string& text) {
  // UTF-8 continuation bytes have no width.
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string render_table(const TableRows& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - display_width(row[i]) + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string format_bytes(unsigned long long bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit < 2 || value >= 100 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace gpulet
