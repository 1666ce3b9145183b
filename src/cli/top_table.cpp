#include "cli/top_table.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gpulet::cli {
namespace {

constexpr std::int64_t kGapMs = 90'000;
constexpr double kFull = 100;

const std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
const std::array<const char*, 8> kHeights = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, 8> kAsciiHeights = {"_", ".", "-", "~", "=", "+", "*", "#"};

std::string repeated(const char* text, std::size_t count) {
  std::string all;
  for (std::size_t i = 0; i < count; ++i) all += text;
  return all;
}

}  // namespace

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string fitted(const std::string& text, std::size_t width, bool right, bool utf8) {
  const auto have = width_of(text);
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

TopLine head_line(const TopTable& table, const TopQuery& query, bool utf8) {
  TopLine line;
  for (const auto& column : table.columns) {
    const bool sorted = column.sort == query.sort;
    std::string title = column.title;
    if (sorted) title += query.descending ? (utf8 ? "▼" : "v") : (utf8 ? "▲" : "^");
    if (!line.empty()) line.push_back({" ", TopTone::kHead});
    line.push_back(
        {fitted(title, column.width, column.right, utf8), sorted ? TopTone::kHeadSorted : TopTone::kHead});
  }
  return line;
}

std::vector<TopLine> body_lines(const TopTable& table, std::size_t columns, bool utf8) {
  std::vector<TopLine> lines;
  for (const auto& row : table.rows) {
    TopLine line;
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const auto& column = table.columns[i];
      if (!line.empty()) line.push_back({" ", TopTone::kPlain});
      line.push_back({fitted(row.cells[i].text, column.width, column.right, utf8), row.cells[i].tone});
    }
    lines.push_back(std::move(line));
    if (row.below.text.empty()) continue;
    constexpr std::size_t kIndent = 6;
    lines.push_back({{std::string(kIndent, ' '), TopTone::kPlain},
                     {fitted(row.below.text, columns - kIndent, false, utf8), row.below.tone}});
  }
  return lines;
}

std::string bar(std::optional<double> percent, std::size_t width, bool utf8) {
  if (!percent) return std::string(width, ' ');
  constexpr std::size_t kParts = 8;
  const double share = std::clamp(*percent, 0.0, kFull) / kFull;
  const auto cells = static_cast<double>(width);
  if (!utf8) {
    const auto full = static_cast<std::size_t>(std::lround(share * cells));
    return std::string(full, '#') + std::string(width - full, '.');
  }
  const auto parts = static_cast<std::size_t>(std::lround(share * cells * static_cast<double>(kParts)));
  std::string text = repeated("█", parts / kParts) + kEighths[parts % kParts];
  return text + repeated("░", width - width_of(text));
}

std::string spark_line(const std::deque<TopPoint>& points, std::optional<double> TopPoint::* value,
                       std::int64_t now, std::size_t width, bool utf8) {
  if (width == 0) return {};
  std::vector<std::optional<double>> columns(width);
  const std::int64_t start = now - kTopHistoryMs;
  for (const auto& point : points) {
    if (point.at <= start || point.at > now || !(point.*value)) continue;
    const auto place =
        static_cast<std::size_t>((point.at - start - 1) * static_cast<std::int64_t>(width) / kTopHistoryMs);
    auto& column = columns[place];
    column = std::max(column.value_or(0), *(point.*value));
  }
  const auto most_gap = static_cast<std::size_t>(kGapMs * static_cast<std::int64_t>(width) / kTopHistoryMs);
  const auto& heights = utf8 ? kHeights : kAsciiHeights;
  std::string text;
  std::optional<double> last;
  std::size_t since = 0;
  for (const auto& column : columns) {
    if (column) last = column;
    since = column ? 0 : since + 1;
    if (!last || since > most_gap) {
      text += ' ';
      continue;
    }
    const double share = std::clamp(*last, 0.0, kFull) / kFull;
    text += heights[static_cast<std::size_t>(std::lround(share * static_cast<double>(heights.size() - 1)))];
  }
  return text;
}

}  // namespace gpulet::cli
