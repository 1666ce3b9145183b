// The screen of `gpulet top` as lines of spans, for a terminal or standard output, and as JSON. Pure: the
// same model and view give the same lines.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/top/model.h"

namespace gpulet::cli {

// The last three are of bars and graphs.
enum class TopTone {
  kPlain,
  kGood,
  kWarn,
  kBad,
  kDim,
  kStrong,
  kHeader,
  kSortedHeader,
  kBarLow,
  kBarMiddle,
  kBarHigh
};
struct TopSpan {
  std::string text;  // ASCII, or UTF-8 with one column per character if the view is utf8
  TopTone tone = TopTone::kPlain;
  bool selected = false;  // of the selected row
  friend bool operator==(const TopSpan&, const TopSpan&) = default;
};
using TopLine = std::vector<TopSpan>;        // not wider than the view
std::string line_text(const TopLine& line);  // without trailing spaces

enum class TopPage { kTables, kHistory, kHelp };
struct TopView {
  unsigned columns = 80, rows = 24;  // at least kMinTopColumns are used
  bool utf8 = true;
  bool braille = true;  // the terminal's font has braille patterns; only with utf8
  TopTab tab = TopTab::kGpus;
  TopPage page = TopPage::kTables;
  std::map<TopTab, TopQuery> queries;       // default_query() if missing
  std::map<TopTab, std::string> selection;  // the key of the selected row; none if missing
  bool typing = false;                      // the filter is being typed
  bool paused = false;
  std::size_t scroll = 0;  // lines of the body above the screen
  // Time of the disconnect, in milliseconds since 1970.
  std::optional<std::int64_t> disconnected_since;
  std::string disconnect_reason;
  std::int64_t now = 0;  // milliseconds since 1970
};
inline constexpr unsigned kMinTopColumns = 40;
inline constexpr unsigned kPanelTopColumns = 160;  // from these on, a panel shows one GPU beside the table
const TopQuery& tab_query(const TopView& view, TopTab tab);
// The key of the tab's selected row, empty if there is none.
std::string selected_row(const TopView& view, TopTab tab);
bool shows_panel(const TopView& view);
// Whether the screen shows /api/history.
bool shows_history(const TopView& view);

// Columns `begin` to `end` (exclusive) of a screen's row, counted from 0.
struct TopArea {
  std::size_t row = 0, begin = 0, end = 0;
  bool contains(std::size_t at_row, std::size_t at_column) const {
    return at_row == row && at_column >= begin && at_column < end;
  }
};
struct TopScreen {
  std::vector<TopLine> lines;  // exactly view.rows
  std::size_t max_scroll = 0;  // the largest useful TopView::scroll
  // Where keys and the mouse find what they act on. Each line of the body, also those off the screen, has the
  // key of its row; none outside of the tables.
  std::vector<std::string> row_keys;
  std::size_t body_row = 0, body_rows = 0, body_columns = 0;  // the body on the screen
  std::vector<std::pair<TopArea, TopTab>> tabs;
  std::vector<std::pair<TopArea, TopColumn>> headers;  // of columns that rows can be sorted by
};
TopScreen render_screen(const TopModel& model, const TopView& view);

// Tables without a screen's limits: what --batch prints. Without rows, only the first is printed.
std::vector<TopLine> render_batch(const TopModel& model, const TopView& view, std::span<const TopTab> tabs);

// One line of JSON, with the rows of the view's queries. Numbers are in bytes, percent, °C, W, MHz, bytes per
// second; unknown ones are left out:
//   at (milliseconds since 1970; left out before the first sample), node, driver, cuda, problems [text],
//   claims [text: those that wait, and GPUs that move], limits (unless empty) [text: the grade of memory limits,
//   and containers of a lower one]
//   gpus [{gpu, uuid, name, state, reason, excluded (unless empty), memory_total, util, sm, memory_util,
//          memory, temperature, power, power_limit, sm_clock, memory_clock, pcie_rx, pcie_tx, nvlink_rx,
//          nvlink_tx, nvlink (both directions), ecc_corrected, ecc_uncorrected (errors since the driver's
//          start), pods [text], slices [the same of each MIG device]}]
//   pods [{pod, containers, gpus, shares, busy, memory}]
//   processes [{pid, name, gpu, busy, memory, pod}]
std::string render_top_json(const TopModel& model, const TopView& view);

}  // namespace gpulet::cli
