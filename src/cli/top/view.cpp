#include "cli/top/view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/top/panel.h"
#include "cli/top/tables.h"

namespace gpulet::cli {
namespace {

constexpr std::int64_t kOldMs = 20'000;  // an older sample is marked as old

std::string clock_text(std::int64_t at) {
  constexpr std::size_t kFrom = 11, kSize = 8;  // of "2026-01-31T12:00:00.123Z"
  return format_wall_time(WallTime(std::chrono::milliseconds(at))).substr(kFrom, kSize) + "Z";
}

const char* tab_title(TopTab tab) {
  return tab == TopTab::kGpus ? "GPUs" : tab == TopTab::kPods ? "Pods" : "Processes";
}

TopLine clip_line(const TopLine& line, std::size_t columns, bool utf8) {
  TopLine shown;
  std::size_t used = 0;
  for (const auto& span : line) {
    const auto width = display_width(span.text);
    if (used + width > columns) {
      if (columns > used) shown.push_back({fit_to_width(span.text, columns - used, false, utf8), span.tone});
      break;
    }
    shown.push_back(span);
    used += width;
  }
  return shown;
}

// The node and its driver, as much as fits: its name is cut last.
std::string node_facts(const TopNode& node, std::size_t columns, bool utf8) {
  const std::string driver = node.driver.empty() ? "" : "  driver " + node.driver;
  const std::string cuda = node.cuda.empty() ? "" : "  CUDA " + node.cuda;
  const std::string gpus = "  " + std::to_string(node.gpus.size()) + " GPUs";
  for (const auto& rest : {gpus + driver + cuda, gpus + driver, gpus}) {
    const std::string all = "  " + node.name + rest;
    if (display_width(all) <= columns) return all;
  }
  return fit_to_width("  " + node.name, std::min(columns, node.name.size() + 2), false, utf8);
}

TopLine title_line(const TopModel& model, const TopView& view) {
  TopLine line = {{"gpulet top", TopTone::kStrong}};
  const auto* node = model.node_document();
  if (node == nullptr) return line;
  TopLine end;
  if (const auto at = model.sampled_at()) end.push_back({"  " + clock_text(*at), TopTone::kDim});
  if (view.paused) end.push_back({"  PAUSED", TopTone::kWarn});
  std::size_t used = line.front().text.size();
  for (const auto& span : end) used += span.text.size();
  const std::size_t columns = std::max(view.columns, kMinTopColumns);
  line.push_back({node_facts(*node, columns - used, view.utf8)});
  line.insert(line.end(), end.begin(), end.end());
  return line;
}

// One line for each problem: no connection, an old sample, the node's own.
std::vector<TopLine> status_lines(const TopModel& model, const TopView& view) {
  std::vector<TopLine> lines;
  if (view.disconnected_since) {
    lines.push_back(
        {{"agent unreachable since " + clock_text(*view.disconnected_since) + ": " + view.disconnect_reason,
          TopTone::kBad}});
  } else if (const auto at = model.sampled_at(); at && view.now - *at > kOldMs && !view.paused) {
    lines.push_back(
        {{"the last sample is " + std::to_string((view.now - *at) / 1000) + " s old", TopTone::kWarn}});
  } else if (!at && model.node_document() != nullptr) {
    lines.push_back({{"no sample yet", TopTone::kWarn}});
  }
  if (const auto* node = model.node_document()) {
    constexpr std::size_t kMostProblems = 3;
    for (std::size_t i = 0; i < std::min(node->problems.size(), kMostProblems); ++i)
      lines.push_back({{node->problems[i], TopTone::kWarn}});
    for (std::size_t i = 0; i < std::min(node->claims.size(), kMostProblems); ++i)
      lines.push_back({{node->claims[i], TopTone::kWarn}});
    for (std::size_t i = 1; i < std::min(node->limits.size(), kMostProblems + 1); ++i)
      lines.push_back({{node->limits[i], TopTone::kWarn}});
  }
  return lines;
}

// The next line of `screen`, which learns where each tab is.
TopLine tabs_line(const TopModel& model, const TopView& view, TopScreen& screen) {
  TopLine line;
  std::size_t begin = 0;
  for (const auto tab : kTopTabs) {
    const auto& query = tab_query(view, tab);
    const auto count = tab == TopTab::kGpus   ? model.gpu_rows(query).size()
                       : tab == TopTab::kPods ? model.pod_rows(query).size()
                                              : model.process_rows(query).size();
    const std::string text = std::string(tab_title(tab)) + " " + std::to_string(count);
    const bool shown = tab == view.tab;
    line.push_back({shown ? "[" + text + "]" : " " + text + " ", shown ? TopTone::kStrong : TopTone::kDim});
    const std::size_t end = begin + text.size() + 2;
    screen.tabs.push_back({{.row = screen.lines.size(), .begin = begin, .end = end}, tab});
    begin = end;
  }
  const auto& filter = tab_query(view, view.tab).filter;
  if (!filter.empty() && !view.typing) {
    line.push_back({"  filter: " + filter, TopTone::kWarn});
    line.push_back({"  Esc clears it", TopTone::kDim});
  }
  return line;
}

// Of a table without rows.
TopLine empty_line(const TopQuery& query, TopTab tab) {
  if (!query.filter.empty()) return {{"no match for \"" + query.filter + "\"", TopTone::kWarn}};
  const char* rows = tab == TopTab::kGpus ? "no GPUs" : tab == TopTab::kPods ? "no Pods" : "no processes";
  return {{rows, TopTone::kDim}};
}

std::vector<TopLine> help_lines() {
  const std::pair<const char*, const char*> kKeys[] = {
      {"q, Ctrl-C", "quit"},
      {"Tab, Shift-Tab", "switch between GPUs, Pods, processes"},
      {"s, S", "sort by the next column; reverse the order"},
      {"/, Escape", "filter rows, Enter keeps it; clear the filter"},
      {"p", "pause and resume"},
      {"h", "use and memory of the last 15 minutes"},
      {"Up, Down, click", "select a row, whose GPU a wide screen shows"},
      {"PageUp, Home, End, wheel", "scroll"},
      {"click on a title", "sort by that column; again: reverse the order"},
      {"?", "help; any key closes it"}};
  std::vector<TopLine> lines;
  for (const auto& [key, what] : kKeys)
    lines.push_back(
        {{"  " + fit_to_width(key, 27, false, false), TopTone::kStrong}, {what, TopTone::kPlain}});
  return lines;
}

TopLine footer_line(const TopView& view) {
  if (view.typing) return {{"/" + tab_query(view, view.tab).filter, TopTone::kStrong}, {"_", TopTone::kDim}};
  return {{"q quit  s sort  / filter  p pause  h history  Tab next  ? help", TopTone::kDim}};
}

}  // namespace

std::string line_text(const TopLine& line) {
  std::string text;
  for (const auto& span : line) text += span.text;
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

const TopQuery& tab_query(const TopView& view, TopTab tab) {
  static const std::map<TopTab, TopQuery> kDefaults = {
      {TopTab::kGpus, default_query(TopTab::kGpus)},
      {TopTab::kPods, default_query(TopTab::kPods)},
      {TopTab::kProcesses, default_query(TopTab::kProcesses)}};
  const auto found = view.queries.find(tab);
  return found == view.queries.end() ? kDefaults.at(tab) : found->second;
}

std::string selected_row(const TopView& view, TopTab tab) {
  const auto found = view.selection.find(tab);
  return found == view.selection.end() ? std::string() : found->second;
}

bool shows_panel(const TopView& view) {
  return view.page == TopPage::kTables && view.columns >= kPanelTopColumns;
}

bool shows_history(const TopView& view) { return view.page == TopPage::kHistory || shows_panel(view); }

namespace {

// Builds a screen from the top to the bottom.
class ScreenBuilder {
 public:
  ScreenBuilder(const TopModel& model, const TopView& view)
      : model_(model),
        view_(view),
        columns_(shows_panel(view) ? view.columns - panel_width(view) - kSeparator.size()
                                   : std::max(view.columns, kMinTopColumns)) {}

  TopScreen build_screen() {
    add_line(title_line(model_, view_));
    for (auto& line : status_lines(model_, view_)) add_line(std::move(line));
    add_line(tabs_line(model_, view_, screen_));
    const std::size_t first = screen_.lines.size();
    add_body(body());
    screen_.lines.resize(view_.rows > 0 ? view_.rows - 1 : 0);
    if (shows_panel(view_)) add_panel(first);
    if (view_.rows > 0) add_line(footer_line(view_));
    for (auto& line : screen_.lines) line = clip_line(line, view_.columns, view_.utf8);
    return std::move(screen_);
  }

 private:
  static constexpr std::string_view kSeparator = " | ";

  void add_line(TopLine line) { screen_.lines.push_back(std::move(line)); }

  std::vector<TopBodyLine> body() {
    std::vector<TopBodyLine> lines;
    if (view_.page != TopPage::kTables) {
      auto plain = view_.page == TopPage::kHelp ? help_lines() : history_lines(model_, view_, columns_);
      for (auto& line : plain) lines.push_back({std::move(line), {}});
      return lines;
    }
    const auto& query = tab_query(view_, view_.tab);
    const auto table = tab_table(model_, view_, view_.tab, columns_);
    std::size_t begin = 0;
    for (const auto& column : table.columns) {
      const std::size_t end = begin + column.width;
      if (column.sort)
        screen_.headers.push_back({{.row = screen_.lines.size(), .begin = begin, .end = end}, *column.sort});
      begin = end + 1;
    }
    add_line(header_line(table, query, view_.utf8));
    lines = body_lines(table, columns_, selected_row(view_, view_.tab), view_.utf8);
    for (const auto& line : lines) screen_.row_keys.push_back(line.key);
    if (lines.empty() && model_.node_document() != nullptr)
      lines.push_back({empty_line(query, view_.tab), {}});
    return lines;
  }

  void add_body(std::vector<TopBodyLine> body) {
    const std::size_t above = screen_.lines.size();
    const std::size_t room = view_.rows > above + 1 ? view_.rows - above - 1 : 0;
    screen_.max_scroll = body.size() > room ? body.size() - room : 0;
    screen_.body_row = above;
    screen_.body_rows = room;
    screen_.body_columns = columns_;
    const auto first = std::min(view_.scroll, screen_.max_scroll);
    for (std::size_t i = first; i < std::min(body.size(), first + room); ++i)
      add_line(std::move(body[i].line));
  }

  // Beside the lines from `first` on.
  void add_panel(std::size_t first) {
    if (first >= screen_.lines.size()) return;
    const auto panel = panel_lines(model_, view_, panel_width(view_), screen_.lines.size() - first);
    for (std::size_t i = first; i < screen_.lines.size(); ++i) {
      auto& line = screen_.lines[i];
      line = clip_line(line, columns_, view_.utf8);
      std::size_t used = 0;
      for (const auto& span : line) used += display_width(span.text);
      line.push_back({std::string(columns_ - used, ' ')});
      line.push_back({view_.utf8 ? " │ " : std::string(kSeparator), TopTone::kDim});
      if (i - first < panel.size()) line.insert(line.end(), panel[i - first].begin(), panel[i - first].end());
    }
  }

  const TopModel& model_;
  const TopView& view_;
  std::size_t columns_;  // of the table
  TopScreen screen_;
};

}  // namespace

TopScreen render_screen(const TopModel& model, const TopView& view) {
  return ScreenBuilder(model, view).build_screen();
}

std::vector<TopLine> render_batch(const TopModel& model, const TopView& view, std::span<const TopTab> tabs) {
  const std::size_t columns = std::max(view.columns, kMinTopColumns);
  std::vector<TopLine> lines = {title_line(model, view)};
  for (auto& line : status_lines(model, view)) lines.push_back(std::move(line));
  for (const auto tab : tabs) {
    const auto table = tab_table(model, view, tab, columns);
    if (table.rows.empty() && tab != tabs.front()) continue;
    lines.emplace_back();
    lines.push_back(header_line(table, tab_query(view, tab), view.utf8));
    for (auto& line : body_lines(table, columns, {}, view.utf8)) lines.push_back(std::move(line.line));
    if (table.rows.empty()) lines.push_back(empty_line(tab_query(view, tab), tab));
  }
  return lines;
}

namespace {

using Json = nlohmann::ordered_json;

void set_if_known(Json& object, const char* key, const std::optional<double>& value) {
  if (!value) return;
  const auto whole = static_cast<std::int64_t>(*value);
  if (static_cast<double>(whole) == *value) {
    object[key] = whole;
  } else {
    object[key] = *value;
  }
}

Json device_object(const TopDevice& device) {
  Json object = {{"gpu", device.index},
                 {"uuid", device.uuid},
                 {"name", device.name},
                 {"state", device.state},
                 {"reason", device.reason}};
  if (!device.excluded.empty()) object["excluded"] = device.excluded;
  const auto& now = device.now;
  set_if_known(object, "memory_total", device.memory_total);
  set_if_known(object, "util", now.util);
  set_if_known(object, "sm", now.sm);
  set_if_known(object, "memory_util", now.memory_util);
  set_if_known(object, "memory", now.memory);
  set_if_known(object, "temperature", now.temperature);
  set_if_known(object, "power", now.power);
  set_if_known(object, "power_limit", now.power_limit);
  set_if_known(object, "sm_clock", now.sm_clock);
  set_if_known(object, "memory_clock", now.memory_clock);
  set_if_known(object, "pcie_rx", now.pcie_rx);
  set_if_known(object, "pcie_tx", now.pcie_tx);
  set_if_known(object, "nvlink_rx", now.nvlink_rx);
  set_if_known(object, "nvlink_tx", now.nvlink_tx);
  set_if_known(object, "nvlink", now.nvlink);
  set_if_known(object, "ecc_corrected", now.ecc_corrected);
  set_if_known(object, "ecc_uncorrected", now.ecc_uncorrected);
  object["pods"] = device.pods;
  return object;
}

void set_consumption(Json& object, const TopConsumption& used) {
  set_if_known(object, "busy", used.busy);
  set_if_known(object, "memory", used.memory);
}

}  // namespace

std::string render_top_json(const TopModel& model, const TopView& view) {
  Json document = Json::object();
  if (const auto at = model.sampled_at()) document["at"] = *at;
  if (const auto* node = model.node_document()) {
    document.update({{"node", node->name},
                     {"driver", node->driver},
                     {"cuda", node->cuda},
                     {"problems", node->problems},
                     {"claims", node->claims}});
    if (!node->limits.empty()) document["limits"] = node->limits;
  }
  for (const char* list : {"gpus", "pods", "processes"}) document[list] = Json::array();
  for (const auto& gpu : model.gpu_rows(tab_query(view, TopTab::kGpus))) {
    Json object = device_object(gpu);
    object["slices"] = Json::array();
    for (const auto& slice : gpu.slices) object["slices"].push_back(device_object(slice));
    document["gpus"].push_back(std::move(object));
  }
  for (const auto& row : model.pod_rows(tab_query(view, TopTab::kPods))) {
    Json object = {
        {"pod", row.pod}, {"containers", row.containers}, {"gpus", row.devices}, {"shares", row.shares}};
    set_consumption(object, row.used);
    document["pods"].push_back(std::move(object));
  }
  for (const auto& row : model.process_rows(tab_query(view, TopTab::kProcesses))) {
    Json object = {{"pid", row.pid}, {"name", row.name}, {"gpu", row.device}};
    set_consumption(object, row.used);
    object["pod"] = row.pod;
    document["processes"].push_back(std::move(object));
  }
  return document.dump();
}

}  // namespace gpulet::cli
