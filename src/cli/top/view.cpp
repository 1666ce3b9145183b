#include "cli/top/view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include <nlohmann/json.hpp>

#include "base/text.h"
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

TopLine title_line(const TopModel& model, const TopView& view) {
  TopLine line = {{"gpulet top", TopTone::kStrong}};
  const auto* node = model.node_document();
  if (node == nullptr) return line;
  std::string facts = "  " + node->name + "  " + std::to_string(node->gpus.size()) + " GPUs";
  if (!node->driver.empty()) facts += "  driver " + node->driver;
  if (!node->cuda.empty()) facts += "  CUDA " + node->cuda;
  line.push_back({std::move(facts), TopTone::kPlain});
  if (const auto at = model.sampled_at()) line.push_back({"  " + clock_text(*at), TopTone::kDim});
  if (view.paused) line.push_back({"  PAUSED", TopTone::kWarn});
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
  }
  return lines;
}

TopLine tabs_line(const TopModel& model, const TopView& view) {
  TopLine line;
  for (const auto tab : kTopTabs) {
    const auto& query = tab_query(view, tab);
    const auto count = tab == TopTab::kGpus   ? model.gpu_rows(query).size()
                       : tab == TopTab::kPods ? model.pod_rows(query).size()
                                              : model.process_rows(query).size();
    const std::string text = std::string(tab_title(tab)) + " " + std::to_string(count);
    const bool shown = tab == view.tab;
    line.push_back({shown ? "[" + text + "]" : " " + text + " ", shown ? TopTone::kStrong : TopTone::kDim});
  }
  const auto& filter = tab_query(view, view.tab).filter;
  if (!filter.empty() && !view.typing) line.push_back({"  filter: " + filter, TopTone::kWarn});
  return line;
}

std::vector<TopLine> help_lines() {
  const std::pair<const char*, const char*> kKeys[] = {
      {"q, Ctrl-C", "quit"},
      {"Tab, Shift-Tab", "switch between GPUs, Pods, processes"},
      {"s, S", "sort by the next column; reverse the order"},
      {"/", "filter rows; Enter keeps it, Escape clears it"},
      {"p", "pause and resume"},
      {"h", "use and memory of the last 15 minutes"},
      {"arrows, PageUp, Home, End", "scroll"},
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

TopScreen render_screen(const TopModel& model, const TopView& view) {
  TopScreen screen;
  auto& lines = screen.lines;
  lines.push_back(title_line(model, view));
  for (auto& line : status_lines(model, view)) lines.push_back(std::move(line));
  lines.push_back(tabs_line(model, view));
  std::vector<TopLine> body;
  if (view.page == TopPage::kHelp) {
    body = help_lines();
  } else if (view.page == TopPage::kHistory) {
    body = history_lines(model, view);
  } else {
    const auto table = tab_table(model, view, view.tab);
    lines.push_back(header_line(table, tab_query(view, view.tab), view.utf8));
    body = body_lines(table, table_width(view), view.utf8);
  }
  const std::size_t room = view.rows > lines.size() + 1 ? view.rows - lines.size() - 1 : 0;
  screen.max_scroll = body.size() > room ? body.size() - room : 0;
  const auto first = std::min(view.scroll, screen.max_scroll);
  for (std::size_t i = first; i < std::min(body.size(), first + room); ++i) lines.push_back(body[i]);
  if (view.rows == 0) {
    lines.clear();
  } else {
    lines.resize(view.rows - 1);
    lines.push_back(footer_line(view));
  }
  for (auto& line : lines) line = clip_line(line, view.columns, view.utf8);
  return screen;
}

std::vector<TopLine> render_batch(const TopModel& model, const TopView& view) {
  std::vector<TopLine> lines = {title_line(model, view)};
  for (auto& line : status_lines(model, view)) lines.push_back(std::move(line));
  for (const auto tab : kTopTabs) {
    const auto table = tab_table(model, view, tab);
    if (table.rows.empty() && tab != TopTab::kGpus) continue;
    lines.emplace_back();
    lines.push_back(header_line(table, tab_query(view, tab), view.utf8));
    for (auto& line : body_lines(table, table_width(view), view.utf8)) lines.push_back(std::move(line));
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
    document.update(
        {{"node", node->name}, {"driver", node->driver}, {"cuda", node->cuda}, {"problems", node->problems}});
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

namespace {

using Kind = TopKey::Kind;

constexpr std::size_t kMaxFilterLength = 63;  // the longest Pod name
constexpr std::size_t kFixedLines = 4;        // that do not scroll: title, tabs, header, footer

TopQuery& edit_query(TopView& view) {
  return view.queries.try_emplace(view.tab, default_query(view.tab)).first->second;
}

void edit_filter(TopView& view, const TopKey& key) {
  auto& filter = edit_query(view).filter;
  switch (key.kind) {
    case Kind::kCharacter:
      if (filter.size() < kMaxFilterLength) filter += key.character;
      break;
    case Kind::kBackspace:
      if (!filter.empty()) filter.pop_back();
      break;
    case Kind::kEscape:
      filter.clear();
      [[fallthrough]];
    case Kind::kEnter:
      view.typing = false;
      break;
    default:
      break;
  }
  view.scroll = 0;
}

void sort_by_next(TopView& view) {
  auto& query = edit_query(view);
  const auto& columns = sort_columns(view.tab);
  const auto at = std::ranges::find(columns, query.sort);
  query.sort = at == columns.end() || std::next(at) == columns.end() ? columns.front() : *std::next(at);
  query.descending = sorts_descending(query.sort);
  view.scroll = 0;
}

void switch_tab(TopView& view, std::size_t steps) {
  const auto at = static_cast<std::size_t>(std::ranges::find(kTopTabs, view.tab) - std::begin(kTopTabs));
  view.tab = kTopTabs[(at + steps) % std::size(kTopTabs)];
  view.page = TopPage::kTables;
  view.scroll = 0;
}

void scroll_view(TopView& view, Kind kind, std::size_t most) {
  const std::size_t page = view.rows > kFixedLines ? view.rows - kFixedLines : 1;
  const std::size_t at = std::min(view.scroll, most);
  const auto up = [&](std::size_t lines) { view.scroll = at - std::min(at, lines); };
  const auto down = [&](std::size_t lines) { view.scroll = std::min(most, at + lines); };
  if (kind == Kind::kUp) up(1);
  if (kind == Kind::kDown) down(1);
  if (kind == Kind::kPageUp) up(page);
  if (kind == Kind::kPageDown) down(page);
  if (kind == Kind::kHome) view.scroll = 0;
  if (kind == Kind::kEnd) view.scroll = most;
}

void toggle_page(TopView& view, TopPage page) {
  view.page = view.page == page ? TopPage::kTables : page;
  view.scroll = 0;
}

}  // namespace

TopAction apply_key(TopView& view, const TopKey& key, std::size_t most_scroll) {
  if (view.typing) {
    edit_filter(view, key);
    return TopAction::kNone;
  }
  if (view.page == TopPage::kHelp && !(key.kind == Kind::kCharacter && key.character == 'q')) {
    toggle_page(view, TopPage::kHelp);
    return TopAction::kNone;
  }
  switch (key.kind) {
    case Kind::kCharacter:
      break;
    case Kind::kTab:
      switch_tab(view, 1);
      return TopAction::kNone;
    case Kind::kBackTab:
      switch_tab(view, std::size(kTopTabs) - 1);
      return TopAction::kNone;
    default:
      scroll_view(view, key.kind, most_scroll);
      return TopAction::kNone;
  }
  switch (key.character) {
    case 'q':
      return TopAction::kQuit;
    case 's':
      sort_by_next(view);
      break;
    case 'S':
      edit_query(view).descending = !edit_query(view).descending;
      break;
    case '/':
      view.typing = true;
      view.page = TopPage::kTables;
      break;
    case 'p':
      view.paused = !view.paused;
      break;
    case 'h':
      toggle_page(view, TopPage::kHistory);
      break;
    case '?':
      toggle_page(view, TopPage::kHelp);
      break;
    default:
      break;
  }
  return TopAction::kNone;
}

}  // namespace gpulet::cli
