// The screen of `gpulet top` as lines of spans, for a terminal or standard output, and as JSON; and what keys
// change. Pure: the same model and view give the same lines.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/top/model.h"

namespace gpulet::cli {

enum class TopTone { kPlain, kGood, kWarn, kBad, kDim, kStrong, kHeader, kSortedHeader };
struct TopSpan {
  std::string text;  // ASCII, or UTF-8 with one column per character if the view is utf8
  TopTone tone = TopTone::kPlain;
  friend bool operator==(const TopSpan&, const TopSpan&) = default;
};
using TopLine = std::vector<TopSpan>;        // not wider than the view
std::string line_text(const TopLine& line);  // without trailing spaces

enum class TopPage { kTables, kHistory, kHelp };
struct TopView {
  unsigned columns = 80, rows = 24;  // at least kMinTopColumns are used
  bool utf8 = true;
  TopTab tab = TopTab::kGpus;
  TopPage page = TopPage::kTables;
  std::map<TopTab, TopQuery> queries;  // default_query() if missing
  bool typing = false;                 // the filter is being typed
  bool paused = false;
  std::size_t scroll = 0;  // lines of the body above the screen
  // Time of the disconnect, in milliseconds since 1970.
  std::optional<std::int64_t> disconnected_since;
  std::string disconnect_reason;
  std::int64_t now = 0;  // milliseconds since 1970
};
inline constexpr unsigned kMinTopColumns = 40;
const TopQuery& tab_query(const TopView& view, TopTab tab);

struct TopScreen {
  std::vector<TopLine> lines;  // exactly view.rows
  std::size_t max_scroll = 0;  // the largest useful TopView::scroll
};
TopScreen render_screen(const TopModel& model, const TopView& view);

// All tables, unclipped: what --batch prints.
std::vector<TopLine> render_batch(const TopModel& model, const TopView& view);

// What keys do.

struct TopKey {
  enum class Kind {
    kCharacter,
    kEnter,
    kEscape,
    kBackspace,
    kTab,
    kBackTab,
    kUp,
    kDown,
    kPageUp,
    kPageDown,
    kHome,
    kEnd
  };
  Kind kind = Kind::kCharacter;
  char character = 0;  // printable ASCII
};

enum class TopAction { kNone, kQuit };
// Changes the view as `key` says. `max_scroll`: as TopScreen.
TopAction apply_key(TopView& view, const TopKey& key, std::size_t max_scroll);

// One line of JSON, with the rows of the view's queries. Numbers are in bytes, percent, °C, W, MHz; unknown
// ones are left out:
//   at (milliseconds since 1970; left out before the first sample), node, driver, cuda, problems [text]
//   gpus [{gpu, uuid, name, state, reason, memory_total, util, sm, memory_util, memory, temperature, power,
//          power_limit, sm_clock, memory_clock, pods [text], slices [the same of each MIG device]}]
//   pods [{pod, containers, gpus, shares, busy, memory}]
//   processes [{pid, name, gpu, busy, memory, pod}]
std::string render_top_json(const TopModel& model, const TopView& view);

}  // namespace gpulet::cli
