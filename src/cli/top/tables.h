// The tables of `gpulet top`, each in a given width, and its page of histories. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/top/cells.h"
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
    std::string key;             // the same while the row exists
    std::vector<TopLine> cells;  // one for each column; of several spans if they fill it exactly
    TopSpan below;               // a line of its own; empty: none
  };
  std::vector<Row> rows;
};

// Tables adapt from 40 columns on: the less important columns need a wider one.
TopTable tab_table(const TopModel& model, const TopView& view, TopTab tab, std::size_t columns);
// Two lines for each GPU: use and memory of the last 15 minutes.
std::vector<TopLine> history_lines(const TopModel& model, const TopView& view, std::size_t columns);

// Cells are one space apart.
TopLine header_line(const TopTable& table, const TopQuery& query, bool utf8);
struct TopBodyLine {
  TopLine line;
  std::string key;  // of its row
};
std::vector<TopBodyLine> body_lines(const TopTable& table, std::size_t columns, const std::string& selected,
                                    bool utf8);

}  // namespace gpulet::cli
