#include "cli/top/cells.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/text.h"

namespace gpulet::cli {
namespace {

constexpr std::int64_t kGapMs = 90'000;
constexpr double kFull = 100;
constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kMega = 1e6;
constexpr double kBusy = 70, kVeryBusy = 90;  // percent

const std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
const std::array<const char*, 8> kHeights = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, 8> kAsciiHeights = {"_", ".", "-", "~", "=", "+", "*", "#"};

std::string repeated(const char* text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

double share_of(double percent) { return std::clamp(percent, 0.0, kFull) / kFull; }

std::string format_decimal(double value, const char* format = "%.1f") {
  char text[32];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// "12M", "1.6G": the number, then the unit's letter after `gap`.
std::string format_scaled(double rate, const char* gap) {
  rate /= kMega;
  constexpr const char* kUnits[] = {"M", "G", "T", "P"};
  constexpr double kStep = 1000, kRoundsUp = 999.5, kOneDecimal = 9.95;
  std::size_t unit = 0;
  while (rate >= kRoundsUp && unit + 1 < std::size(kUnits)) {
    rate /= kStep;
    ++unit;
  }
  const bool whole = rate >= kOneDecimal || rate == std::floor(rate);
  return format_decimal(rate, whole ? "%.0f" : "%.1f") + gap + kUnits[unit];
}

// The 15 minutes before `now` in `count` columns, each the maximum of its time; gaps of up to 90 s are
// filled.
std::vector<std::optional<double>> columns_over_time(const std::deque<TopPoint>& points,
                                                     std::optional<double> TopPoint::* value,
                                                     std::int64_t now, std::size_t count) {
  std::vector<std::optional<double>> columns(count);
  const std::int64_t start = now - kTopHistoryMs;
  for (const auto& point : points) {
    if (count == 0 || point.at <= start || point.at > now || !(point.*value)) continue;
    const auto place =
        static_cast<std::size_t>((point.at - start - 1) * static_cast<std::int64_t>(count) / kTopHistoryMs);
    columns[place] = std::max(columns[place].value_or(0), *(point.*value));
  }
  const auto most_gap = static_cast<std::size_t>(kGapMs * static_cast<std::int64_t>(count) / kTopHistoryMs);
  std::optional<double> last;
  std::size_t since = 0;
  for (auto& column : columns) {
    if (column) last = column;
    since = column ? 0 : since + 1;
    column = since > most_gap ? std::nullopt : last;
  }
  return columns;
}

// A cell of braille dots, filled from the bottom: `left` and `right` of four levels.
std::string braille_cell(std::size_t left, std::size_t right) {
  constexpr unsigned kLeft[] = {0x00, 0x40, 0x44, 0x46, 0x47}, kRight[] = {0x00, 0x80, 0xA0, 0xB0, 0xB8};
  const unsigned dots = kLeft[left] | kRight[right];
  if (dots == 0) return " ";
  // U+2800 and the dots, in UTF-8.
  return {'\xE2', static_cast<char>(0xA0 | dots >> 6), static_cast<char>(0x80 | (dots & 0x3F))};
}

}  // namespace

std::string fit_to_width(const std::string& text, std::size_t width, bool right, bool utf8) {
  const auto have = display_width(text);
  if (have <= width) {
    const std::string blanks(width - have, ' ');
    return right ? blanks + text : text + blanks;
  }
  if (width == 0) return {};
  std::string cut;
  std::size_t taken = 0;
  for (const char byte : text) {
    if ((byte & 0xC0) != 0x80 && taken++ == width - 1) break;
    cut += byte;
  }
  return cut + (utf8 ? "…" : "~");
}

std::string NumberFormatter::format_number(std::optional<double> value, const char* unit) const {
  return value ? std::to_string(std::llround(*value)) + unit : unknown_;
}

std::string NumberFormatter::format_of_limit(std::optional<double> value, std::optional<double> limit,
                                             const char* unit) const {
  if (!value && !limit) return unknown_;
  return format_number(value) + "/" + format_number(limit) + unit;
}

std::string NumberFormatter::format_gib_of_limit(std::optional<double> value,
                                                 std::optional<double> limit) const {
  if (!value && !limit) return unknown_;
  const auto gib = [&](std::optional<double> bytes) {
    return bytes ? format_decimal(*bytes / kGib) : unknown_;
  };
  return gib(value) + "/" + gib(limit) + "G";
}

std::string NumberFormatter::format_size(std::optional<double> bytes) const {
  return bytes && *bytes >= 0 ? format_bytes(static_cast<unsigned long long>(*bytes)) : unknown_;
}

std::string NumberFormatter::format_short_rate(std::optional<double> rate) const {
  if (!rate) return unknown_;
  return *rate == 0 ? "0" : format_scaled(*rate, "");
}

std::string NumberFormatter::format_rate(std::optional<double> rate) const {
  return rate ? format_scaled(*rate, " ") + "B/s" : unknown_;
}

std::optional<double> percent_of(std::optional<double> part, std::optional<double> whole) {
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return *part / *whole * kFull;
}

TopTone state_tone(const std::string& state) {
  if (state == "healthy") return TopTone::kGood;
  if (state == "lost" || state == "quarantined") return TopTone::kBad;
  if (state == "degraded" || state == "draining" || state == "recovering") return TopTone::kWarn;
  return TopTone::kDim;
}

TopTone util_tone(std::optional<double> percent) {
  if (!percent || *percent < kBusy) return TopTone::kBarLow;
  return *percent < kVeryBusy ? TopTone::kBarMiddle : TopTone::kBarHigh;
}

TopTone memory_tone(std::optional<double> percent) {
  if (!percent || *percent < kFilling) return TopTone::kBarLow;
  return *percent < kNearlyFull ? TopTone::kBarMiddle : TopTone::kBarHigh;
}

std::string render_bar(std::optional<double> percent, std::size_t width, bool utf8) {
  std::string text;
  for (const auto& span : bar_spans(percent, width, utf8, TopTone::kPlain)) text += span.text;
  return text;
}

TopLine bar_spans(std::optional<double> percent, std::size_t width, bool utf8, TopTone tone) {
  if (!percent) return {{std::string(width, ' '), TopTone::kPlain}};
  constexpr std::size_t kParts = 8;
  const double cells = share_of(*percent) * static_cast<double>(width);
  std::string filled;
  if (utf8) {
    const auto parts = static_cast<std::size_t>(std::lround(cells * static_cast<double>(kParts)));
    filled = repeated("█", parts / kParts) + kEighths[parts % kParts];
  } else {
    filled = std::string(static_cast<std::size_t>(std::lround(cells)), '#');
  }
  std::string rest = repeated(utf8 ? "░" : ".", width - display_width(filled));
  return {{std::move(filled), tone}, {std::move(rest), TopTone::kDim}};
}

std::string render_spark_line(const std::deque<TopPoint>& points, std::optional<double> TopPoint::* value,
                              std::int64_t now, std::size_t width, bool utf8) {
  const auto& heights = utf8 ? kHeights : kAsciiHeights;
  std::string text;
  for (const auto& column : columns_over_time(points, value, now, width)) {
    if (!column) {
      text += ' ';
      continue;
    }
    const double level = share_of(*column) * static_cast<double>(heights.size() - 1);
    text += heights[static_cast<std::size_t>(std::lround(level))];
  }
  return text;
}

TopGraphStyle graph_style(const TopView& view) {
  if (!view.utf8) return TopGraphStyle::kAscii;
  return view.braille ? TopGraphStyle::kBraille : TopGraphStyle::kBlocks;
}

std::vector<std::string> render_graph(const std::deque<TopPoint>& points,
                                      std::optional<double> TopPoint::* value, std::int64_t now,
                                      std::size_t width, std::size_t height, TopGraphStyle style) {
  const bool braille = style == TopGraphStyle::kBraille;
  const std::size_t levels = braille ? 4 : style == TopGraphStyle::kBlocks ? kHeights.size() : 2;
  const auto columns = columns_over_time(points, value, now, braille ? width * 2 : width);
  // A known value fills at least one level.
  const auto level_in = [&](std::size_t column, std::size_t line) -> std::size_t {
    if (!columns[column]) return 0;
    const auto filled = static_cast<std::size_t>(
        std::max(1L, std::lround(share_of(*columns[column]) * static_cast<double>(height * levels))));
    const std::size_t below = (height - 1 - line) * levels;
    return filled <= below ? 0 : std::min(levels, filled - below);
  };
  std::vector<std::string> lines(height);
  for (std::size_t line = 0; line < height; ++line) {
    for (std::size_t cell = 0; cell < width; ++cell) {
      if (braille) {
        lines[line] += braille_cell(level_in(cell * 2, line), level_in(cell * 2 + 1, line));
        continue;
      }
      const std::size_t level = level_in(cell, line);
      const bool blocks = style == TopGraphStyle::kBlocks;
      lines[line] += level == 0 ? " " : blocks ? kHeights[level - 1] : level == levels ? "#" : ".";
    }
  }
  return lines;
}

}  // namespace gpulet::cli
