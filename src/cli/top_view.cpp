#include "cli/top_view.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/wall_time.h"
#include "cli/text_table.h"
#include "cli/top_table.h"

namespace gpulet::cli {
namespace {

using enum TopColumn;

constexpr double kGib = 1024.0 * 1024 * 1024, kWhole = 100;
constexpr unsigned kWide = 110, kWider = 160;  // columns from which more is shown
constexpr double kWarm = 80, kHot = 87;        // °C; most GPUs slow down at 87
constexpr double kNearlyFull = 97, kFilling = 90;
constexpr std::int64_t kOldMs = 20'000;  // a sample that is older is worth a word
constexpr std::size_t kLeastFlexible = 12, kLeastPods = 20;
constexpr std::string_view kIndent = "  ";  // of a MIG device's name below its GPU's

TopTone tone_of(const std::string& state) {
  if (state == "healthy") return TopTone::kGood;
  if (state == "lost" || state == "quarantined") return TopTone::kBad;
  if (state == "degraded" || state == "draining" || state == "recovering") return TopTone::kWarn;
  return TopTone::kDim;
}
TopTone tone_above(std::optional<double> value, double warn, double bad) {
  if (!value || *value < warn) return TopTone::kPlain;
  return *value < bad ? TopTone::kWarn : TopTone::kBad;
}

// "–" for what is not known.
class Words {
 public:
  explicit Words(bool utf8) : unknown_(utf8 ? "–" : "-") {}
  std::string number(std::optional<double> value, const char* unit = "") const {
    return value ? std::to_string(std::llround(*value)) + unit : unknown_;
  }
  std::string of(std::optional<double> value, std::optional<double> most, const char* unit) const {
    if (!value && !most) return unknown_;
    return number(value) + "/" + number(most) + unit;
  }
  std::string gibibytes(std::optional<double> value, std::optional<double> most) const {
    if (!value && !most) return unknown_;
    return gib(value) + "/" + gib(most) + "G";
  }
  std::string bytes(std::optional<double> value) const {
    return value && *value >= 0 ? human_bytes(static_cast<unsigned long long>(*value)) : unknown_;
  }

 private:
  std::string gib(std::optional<double> value) const {
    if (!value) return unknown_;
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", *value / kGib);
    return text;
  }
  std::string unknown_;
};

std::optional<double> share_of(std::optional<double> part, std::optional<double> whole) {
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return *part / *whole * kWhole;
}

class Tables {
 public:
  Tables(const TopModel& model, const TopView& view)
      : model_(model),
        view_(view),
        columns_(std::max(view.columns, kLeastTopColumns)),
        words_(view.utf8),
        bar_(columns_ >= kWider  ? 20
             : columns_ >= kWide ? 10
                                 : 5) {}

  TopTable of(TopTab tab) const {
    switch (tab) {
      case TopTab::kGpus:
        return gpus();
      case TopTab::kPods:
        return pods();
      case TopTab::kProcesses:
        break;
    }
    return processes();
  }
  unsigned columns() const { return columns_; }

  std::vector<TopLine> history() const {
    constexpr std::size_t kBefore = 11, kAfter = 5;
    const std::size_t width = columns_ - kBefore - kAfter;
    std::vector<TopLine> lines;
    for (const auto& gpu : model_.gpus(query_of(view_, TopTab::kGpus))) {
      const auto& points = model_.history(gpu.uuid);
      const auto line = [&](const char* name, std::optional<double> TopPoint::* value, bool first) {
        const auto last = points.empty() ? std::nullopt : points.back().*value;
        lines.push_back(
            {{first ? fitted(gpu.index, 4, true, view_.utf8) + " " : "     ", TopTone::kStrong},
             {fitted(name, 6, false, view_.utf8), TopTone::kDim},
             {spark_line(points, value, model_.at().value_or(0), width, view_.utf8), TopTone::kGood},
             {fitted(words_.number(last, "%"), kAfter, true, view_.utf8), TopTone::kPlain}});
      };
      line("util", &TopPoint::util, true);
      line("mem", &TopPoint::memory, false);
    }
    const std::string ago = "15 min ago", now = "now";
    lines.push_back(
        {{std::string(kBefore, ' ') + ago + std::string(width - ago.size() - now.size(), ' ') + now,
          TopTone::kDim}});
    return lines;
  }

 private:
  // Gives what is left of the line to the column of that place.
  void stretch(TopTable& table, std::size_t place, std::size_t most) const {
    std::size_t used = table.columns.size() - 1;
    for (const auto& column : table.columns) used += column.width;
    const std::size_t left = columns_ > used ? columns_ - used : 0;
    table.columns[place].width = std::min(most, table.columns[place].width + left);
  }

  std::vector<TopSpan> cells_of(const TopDevice& device, bool slice, bool with_pods) const {
    const auto& now = device.now;
    const auto memory = share_of(now.memory, device.memory_total);
    std::vector<TopSpan> cells = {
        {device.index, TopTone::kStrong},
        {std::string(slice ? kIndent : "") + short_name(device.name), TopTone::kPlain},
        {device.state, tone_of(device.state)},
        {bar(now.util, bar_, view_.utf8) + fitted(words_.number(now.util, "%"), 5, true, view_.utf8),
         TopTone::kPlain},
        {bar(memory, bar_, view_.utf8) +
             fitted(words_.gibibytes(now.memory, device.memory_total), 13, true, view_.utf8),
         tone_above(memory, kFilling, kNearlyFull)},
        {words_.number(now.temperature, "C"), tone_above(now.temperature, kWarm, kHot)},
        {words_.of(now.power, now.power_limit, "W"), TopTone::kPlain}};
    if (columns_ >= kWide) {
      cells.push_back({words_.of(now.sm_clock, now.memory_clock, ""), TopTone::kPlain});
      cells.push_back({words_.number(now.sm, "%"), TopTone::kPlain});
    }
    if (with_pods) {
      std::string pods;
      for (const auto& pod : device.pods) pods += (pods.empty() ? "" : " ") + pod;
      cells.push_back({pods, TopTone::kPlain});
    }
    return cells;
  }

  // The maker's name tells nothing here.
  static std::string short_name(const std::string& name) {
    constexpr std::string_view kMaker = "NVIDIA ";
    return name.starts_with(kMaker) ? name.substr(kMaker.size()) : name;
  }

  TopTable gpus() const {
    TopTable table;
    table.columns = {{"GPU", kGpu, 5, false},
                     {"NAME", kName, 12, false},
                     {"STATE", kState, 11, false},
                     {"UTIL", kUtil, bar_ + 5, false},
                     {"MEMORY", kMemory, bar_ + 13, false},
                     {"TEMP", kTemperature, 5, true},
                     {"POWER", kPower, 9, true}};
    if (columns_ >= kWide) {
      table.columns.push_back({"SM/MEM MHz", kClock, 11, true});
      table.columns.push_back({"SM", kSm, 5, true});
    }
    const auto rows = model_.gpus(query_of(view_, TopTab::kGpus));
    std::size_t longest = kLeastFlexible;
    for (const auto& gpu : rows) {
      longest = std::max(longest, short_name(gpu.name).size());
      for (const auto& slice : gpu.slices) longest = std::max(longest, slice.name.size() + kIndent.size());
    }
    stretch(table, 1, longest);
    std::size_t used = table.columns.size();
    for (const auto& column : table.columns) used += column.width;
    const bool with_pods = columns_ >= used + kLeastPods;
    if (with_pods) table.columns.push_back({"HELD BY", std::nullopt, columns_ - used, false});
    for (const auto& gpu : rows) {
      table.rows.push_back({cells_of(gpu, false, with_pods), {gpu.reason, tone_of(gpu.state)}});
      for (const auto& slice : gpu.slices)
        table.rows.push_back({cells_of(slice, true, with_pods), {slice.reason, tone_of(slice.state)}});
    }
    return table;
  }

  TopTable pods() const {
    const bool wide = columns_ >= kWide;
    TopTable table;
    table.columns = {{"POD", kPod, kLeastFlexible, false},
                     {"CONTAINER", kContainer, wide ? 20U : 12U, false},
                     {"GPU", kGpu, wide ? 20U : 10U, false},
                     {"SHARES", std::nullopt, 6, true},
                     {"BUSY", kUtil, 6, true},
                     {"MEMORY", kMemory, 9, true}};
    stretch(table, 0, columns_);
    for (const auto& pod : model_.pods(query_of(view_, TopTab::kPods))) {
      table.rows.push_back({{{pod.pod, TopTone::kStrong},
                             {pod.containers, TopTone::kPlain},
                             {pod.devices, TopTone::kPlain},
                             {pod.shares > 0 ? std::to_string(pod.shares) : "", TopTone::kPlain},
                             {words_.number(pod.used.busy, "%"), TopTone::kPlain},
                             {words_.bytes(pod.used.memory), TopTone::kPlain}},
                            {}});
    }
    return table;
  }

  TopTable processes() const {
    TopTable table;
    table.columns = {{"PID", kPid, 8, true},       {"PROGRAM", kName, 16, false},
                     {"GPU", kGpu, 5, false},      {"BUSY", kUtil, 6, true},
                     {"MEMORY", kMemory, 9, true}, {"POD", kPod, kLeastFlexible, false}};
    stretch(table, 5, columns_);
    for (const auto& process : model_.processes(query_of(view_, TopTab::kProcesses))) {
      table.rows.push_back({{{std::to_string(process.pid), TopTone::kStrong},
                             {process.name, TopTone::kPlain},
                             {process.device, TopTone::kPlain},
                             {words_.number(process.used.busy, "%"), TopTone::kPlain},
                             {words_.bytes(process.used.memory), TopTone::kPlain},
                             {process.pod, TopTone::kPlain}},
                            {}});
    }
    return table;
  }

  const TopModel& model_;
  const TopView& view_;
  unsigned columns_;
  Words words_;
  std::size_t bar_;
};

std::string time_of(std::int64_t at) {
  constexpr std::size_t kFrom = 11, kSize = 8;  // of "2026-01-31T12:00:00.123Z"
  return wall_text(WallTime(std::chrono::milliseconds(at))).substr(kFrom, kSize) + "Z";
}

const char* title_of(TopTab tab) {
  return tab == TopTab::kGpus ? "GPUs" : tab == TopTab::kPods ? "Pods" : "Processes";
}

TopLine cut(const TopLine& line, std::size_t columns, bool utf8) {
  TopLine shown;
  std::size_t used = 0;
  for (const auto& span : line) {
    const auto width = width_of(span.text);
    if (used + width > columns) {
      if (columns > used) shown.push_back({fitted(span.text, columns - used, false, utf8), span.tone});
      break;
    }
    shown.push_back(span);
    used += width;
  }
  return shown;
}

TopLine title_line(const TopModel& model, const TopView& view) {
  TopLine line = {{"gpulet top", TopTone::kStrong}};
  const auto* node = model.node();
  if (node == nullptr) return line;
  std::string facts = "  " + node->name + "  " + std::to_string(node->gpus.size()) + " GPUs";
  if (!node->driver.empty()) facts += "  driver " + node->driver;
  if (!node->cuda.empty()) facts += "  CUDA " + node->cuda;
  line.push_back({std::move(facts), TopTone::kPlain});
  if (const auto at = model.at()) line.push_back({"  " + time_of(*at), TopTone::kDim});
  if (view.paused) line.push_back({"  PAUSED", TopTone::kWarn});
  return line;
}

// What is wrong, one line each: since when the agent is away, an old sample, the node's problems.
std::vector<TopLine> status_lines(const TopModel& model, const TopView& view) {
  std::vector<TopLine> lines;
  if (view.away_since) {
    lines.push_back({{"no agent since " + time_of(*view.away_since) + ": " + view.away_why, TopTone::kBad}});
  } else if (const auto at = model.at(); at && view.now - *at > kOldMs && !view.paused) {
    lines.push_back(
        {{"the last sample is " + std::to_string((view.now - *at) / 1000) + " s old", TopTone::kWarn}});
  } else if (!at && model.node() != nullptr) {
    lines.push_back({{"nothing has been measured yet", TopTone::kWarn}});
  }
  if (const auto* node = model.node()) {
    constexpr std::size_t kMostProblems = 3;
    for (std::size_t i = 0; i < std::min(node->problems.size(), kMostProblems); ++i)
      lines.push_back({{node->problems[i], TopTone::kWarn}});
  }
  return lines;
}

TopLine tabs_line(const TopModel& model, const TopView& view) {
  TopLine line;
  for (const auto tab : kTopTabs) {
    const auto& query = query_of(view, tab);
    const auto count = tab == TopTab::kGpus   ? model.gpus(query).size()
                       : tab == TopTab::kPods ? model.pods(query).size()
                                              : model.processes(query).size();
    const std::string text = std::string(title_of(tab)) + " " + std::to_string(count);
    const bool shown = tab == view.tab;
    line.push_back({shown ? "[" + text + "]" : " " + text + " ", shown ? TopTone::kStrong : TopTone::kDim});
  }
  const auto& filter = query_of(view, view.tab).filter;
  if (!filter.empty() && !view.typing) line.push_back({"  filter: " + filter, TopTone::kWarn});
  return line;
}

std::vector<TopLine> help_lines() {
  const std::pair<const char*, const char*> kKeys[] = {
      {"q, Ctrl-C", "end"},
      {"Tab, Shift-Tab", "GPUs, Pods, processes"},
      {"s, S", "sort by the next column; turn the order round"},
      {"/", "rows with this text; Enter keeps it, Escape not"},
      {"p", "pause, and go on"},
      {"h", "use and memory of the last 15 minutes"},
      {"arrows, PageUp, Home, End", "scroll"},
      {"?", "this; any key leaves it"}};
  std::vector<TopLine> lines;
  for (const auto& [key, what] : kKeys)
    lines.push_back({{"  " + fitted(key, 27, false, false), TopTone::kStrong}, {what, TopTone::kPlain}});
  return lines;
}

TopLine foot_line(const TopView& view) {
  if (view.typing) return {{"/" + query_of(view, view.tab).filter, TopTone::kStrong}, {"_", TopTone::kDim}};
  return {{"q quit  s sort  / filter  p pause  h history  Tab next  ? help", TopTone::kDim}};
}

}  // namespace

std::string text_of(const TopLine& line) {
  std::string text;
  for (const auto& span : line) text += span.text;
  text.erase(text.find_last_not_of(' ') + 1);
  return text;
}

const TopQuery& query_of(const TopView& view, TopTab tab) {
  static const std::map<TopTab, TopQuery> kDefaults = {
      {TopTab::kGpus, default_query(TopTab::kGpus)},
      {TopTab::kPods, default_query(TopTab::kPods)},
      {TopTab::kProcesses, default_query(TopTab::kProcesses)}};
  const auto found = view.queries.find(tab);
  return found == view.queries.end() ? kDefaults.at(tab) : found->second;
}

TopScreen top_screen(const TopModel& model, const TopView& view) {
  const Tables tables(model, view);
  TopScreen screen;
  auto& lines = screen.lines;
  lines.push_back(title_line(model, view));
  for (auto& line : status_lines(model, view)) lines.push_back(std::move(line));
  lines.push_back(tabs_line(model, view));
  std::vector<TopLine> body;
  if (view.page == TopPage::kHelp) {
    body = help_lines();
  } else if (view.page == TopPage::kHistory) {
    body = tables.history();
  } else {
    const auto table = tables.of(view.tab);
    lines.push_back(head_line(table, query_of(view, view.tab), view.utf8));
    body = body_lines(table, tables.columns(), view.utf8);
  }
  const std::size_t room = view.rows > lines.size() + 1 ? view.rows - lines.size() - 1 : 0;
  screen.most_scroll = body.size() > room ? body.size() - room : 0;
  const auto first = std::min(view.scroll, screen.most_scroll);
  for (std::size_t i = first; i < std::min(body.size(), first + room); ++i) lines.push_back(body[i]);
  if (view.rows == 0) {
    lines.clear();
  } else {
    lines.resize(view.rows - 1);
    lines.push_back(foot_line(view));
  }
  for (auto& line : lines) line = cut(line, view.columns, view.utf8);
  return screen;
}

std::vector<TopLine> top_tables(const TopModel& model, const TopView& view) {
  const Tables tables(model, view);
  std::vector<TopLine> lines = {title_line(model, view)};
  for (auto& line : status_lines(model, view)) lines.push_back(std::move(line));
  for (const auto tab : kTopTabs) {
    const auto table = tables.of(tab);
    if (table.rows.empty() && tab != TopTab::kGpus) continue;
    lines.emplace_back();
    lines.push_back(head_line(table, query_of(view, tab), view.utf8));
    for (auto& line : body_lines(table, tables.columns(), view.utf8)) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace gpulet::cli
