// The screen of `gpulet top` as lines of spans, for a terminal or for standard output. Pure: the same model
// and view give the same lines.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/top_model.h"

namespace gpulet::cli {

enum class TopTone { kPlain, kGood, kWarn, kBad, kDim, kStrong, kHead, kHeadSorted };
struct TopSpan {
  std::string text;  // ASCII, or UTF-8 of one column a character where the view is utf8
  TopTone tone = TopTone::kPlain;
  friend bool operator==(const TopSpan&, const TopSpan&) = default;
};
using TopLine = std::vector<TopSpan>;      // at most as wide as the view
std::string text_of(const TopLine& line);  // without blanks at its end

enum class TopPage { kTables, kHistory, kHelp };
struct TopView {
  unsigned columns = 80, rows = 24;  // fewer than kLeastTopColumns are taken for so many
  bool utf8 = true;
  TopTab tab = TopTab::kGpus;
  TopPage page = TopPage::kTables;
  std::map<TopTab, TopQuery> queries;  // default_query where there is none
  bool typing = false;                 // the filter is being typed
  bool paused = false;
  std::size_t scroll = 0;  // so many of the body's lines are above the screen
  // Since when the agent is away, in milliseconds since 1970, and why.
  std::optional<std::int64_t> away_since;
  std::string away_why;
  std::int64_t now = 0;  // milliseconds since 1970
};
inline constexpr unsigned kLeastTopColumns = 40;
const TopQuery& query_of(const TopView& view, TopTab tab);

struct TopScreen {
  std::vector<TopLine> lines;   // exactly view.rows
  std::size_t most_scroll = 0;  // more of it shows nothing more
};
TopScreen top_screen(const TopModel& model, const TopView& view);

// All tables below each other, whole: what --batch prints.
std::vector<TopLine> top_tables(const TopModel& model, const TopView& view);

}  // namespace gpulet::cli
