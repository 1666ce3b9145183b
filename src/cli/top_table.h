// Pieces that the screen of `gpulet top` is made of: cells of a width, bars, lines over time. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cli/top_view.h"

namespace gpulet::cli {

// Columns on a screen of a text that TopSpan may have.
std::size_t width_of(const std::string& text);
// Exactly `width` wide: blanks added, or cut with a mark at its end.
std::string fitted(const std::string& text, std::size_t width, bool right, bool utf8);

struct TopTableColumn {
  std::string title;
  std::optional<TopColumn> sort;  // what sorts by it
  std::size_t width = 0;
  bool right = false;
};
struct TopTable {
  std::vector<TopTableColumn> columns;
  struct Row {
    std::vector<TopSpan> cells;  // as the columns
    TopSpan below;               // a line of its own; empty: none
  };
  std::vector<Row> rows;
};
// The head and the rows; cells a blank apart.
TopLine head_line(const TopTable& table, const TopQuery& query, bool utf8);
std::vector<TopLine> body_lines(const TopTable& table, std::size_t columns, bool utf8);

// `percent` of `width` filled; nothing of it known: blank.
std::string bar(std::optional<double> percent, std::size_t width, bool utf8);

// The last 15 minutes before `now` in `width` columns, each the largest of its time; a column without a point
// goes on from the one before for a minute and a half, and is blank beyond.
std::string spark_line(const std::deque<TopPoint>& points, std::optional<double> TopPoint::* value,
                       std::int64_t now, std::size_t width, bool utf8);

}  // namespace gpulet::cli
