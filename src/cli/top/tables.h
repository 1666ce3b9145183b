// The tables of `gpulet top`, and what they are made of: cells of a fixed width, bars, lines over time. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/top/view.h"

namespace gpulet::cli {

struct TopTableColumn {
  std::string title;
  std::optional<TopColumn> sort;  // the sort column that it shows
  std::size_t width = 0;
  bool right = false;  // aligned
};
struct TopTable {
  std::vector<TopTableColumn> columns;
  struct Row {
    std::vector<TopSpan> cells;  // one for each column
    TopSpan below;               // a line of its own; empty: none
  };
  std::vector<Row> rows;
};

unsigned table_width(const TopView& view);
TopTable tab_table(const TopModel& model, const TopView& view, TopTab tab);
// Two lines for each GPU: use and memory of the last 15 minutes.
std::vector<TopLine> history_lines(const TopModel& model, const TopView& view);

// Cells are one space apart.
TopLine header_line(const TopTable& table, const TopQuery& query, bool utf8);
std::vector<TopLine> body_lines(const TopTable& table, std::size_t columns, bool utf8);

// Exactly `width` columns: padded with spaces, or cut with a mark at the end.
std::string fit_to_width(const std::string& text, std::size_t width, bool right, bool utf8);

// `percent` of `width` columns filled; spaces if unknown.
std::string render_bar(std::optional<double> percent, std::size_t width, bool utf8);

// The 15 minutes before `now` in `width` columns, each the maximum of its time. A column without a point
// repeats the previous one for up to 90 s, then is a space.
std::string render_spark_line(const std::deque<TopPoint>& points, std::optional<double> TopPoint::* value,
                              std::int64_t now, std::size_t width, bool utf8);

}  // namespace gpulet::cli
