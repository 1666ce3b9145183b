// What the tables and graphs of `gpulet top` are made of: texts of a fixed width, numbers with their units,
// bars and graphs over time. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/top/view.h"

namespace gpulet::cli {

// Exactly `width` columns: padded with spaces, or cut with a mark at the end.
std::string fit_to_width(const std::string& text, std::size_t width, bool right, bool utf8);

// Numbers as text; an unknown value is "–", in ASCII "-".
class NumberFormatter {
 public:
  explicit NumberFormatter(bool utf8) : unknown_(utf8 ? "–" : "-") {}
  std::string format_number(std::optional<double> value, const char* unit = "") const;
  // "340/700W".
  std::string format_of_limit(std::optional<double> value, std::optional<double> limit,
                              const char* unit) const;
  // Of bytes: "30.0/79.6G".
  std::string format_gib_of_limit(std::optional<double> value, std::optional<double> limit) const;
  std::string format_size(std::optional<double> bytes) const;  // "1.0 GiB"
  // Of bytes per second: "0", "12M", "1.6G", "239G".
  std::string format_short_rate(std::optional<double> rate) const;
  std::string format_rate(std::optional<double> rate) const;  // "0 MB/s", "1.6 GB/s"

 private:
  std::string unknown_;
};
// nullopt if a part is unknown or the whole is zero.
std::optional<double> percent_of(std::optional<double> part, std::optional<double> whole);

TopTone state_tone(const std::string& state);
// Of a bar or graph.
TopTone util_tone(std::optional<double> percent);
TopTone memory_tone(std::optional<double> percent);
constexpr double kNearlyFull = 97, kFilling = 90;  // percent of a GPU's memory

// `percent` of `width` columns filled; spaces if unknown.
std::string render_bar(std::optional<double> percent, std::size_t width, bool utf8);
// The same, with its filled part in `tone`.
TopLine bar_spans(std::optional<double> percent, std::size_t width, bool utf8, TopTone tone);

// The 15 minutes before `now` in `width` columns, each the maximum of its time. A column without a point
// repeats the previous one for up to 90 s, then is a space.
std::string render_spark_line(const std::deque<TopPoint>& points, std::optional<double> TopPoint::* value,
                              std::int64_t now, std::size_t width, bool utf8);

// The same time as an area of `height` lines, from 0 to 100 percent: of braille patterns (two columns and
// four levels a cell), of blocks, or of ASCII.
enum class TopGraphStyle { kBraille, kBlocks, kAscii };
TopGraphStyle graph_style(const TopView& view);
std::vector<std::string> render_graph(const std::deque<TopPoint>& points,
                                      std::optional<double> TopPoint::* value, std::int64_t now,
                                      std::size_t width, std::size_t height, TopGraphStyle style);

}  // namespace gpulet::cli
