#include "cli/top/tables.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/text.h"

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

std::string fit_to_width(const std::string& text, std::size_t width, bool right, bool utf8) {
  const auto have = display_width(text);
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

TopLine header_line(const TopTable& table, const TopQuery& query, bool utf8) {
  TopLine line;
  for (const auto& column : table.columns) {
    const bool sorted = column.sort == query.sort;
    std::string title = column.title;
    if (sorted) title += query.descending ? (utf8 ? "▼" : "v") : (utf8 ? "▲" : "^");
    if (!line.empty()) line.push_back({" ", TopTone::kHeader});
    line.push_back({fit_to_width(title, column.width, column.right, utf8),
                    sorted ? TopTone::kSortedHeader : TopTone::kHeader});
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
      line.push_back({fit_to_width(row.cells[i].text, column.width, column.right, utf8), row.cells[i].tone});
    }
    lines.push_back(std::move(line));
    if (row.below.text.empty()) continue;
    constexpr std::size_t kIndent = 6;
    lines.push_back({{std::string(kIndent, ' '), TopTone::kPlain},
                     {fit_to_width(row.below.text, columns - kIndent, false, utf8), row.below.tone}});
  }
  return lines;
}

std::string render_bar(std::optional<double> percent, std::size_t width, bool utf8) {
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
  return text + repeated("░", width - display_width(text));
}

std::string render_spark_line(const std::deque<TopPoint>& points, std::optional<double> TopPoint::* value,
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

namespace {

using enum TopColumn;

constexpr double kGib = 1024.0 * 1024 * 1024, kWhole = 100;
constexpr unsigned kWide = 110, kWider = 160;  // widths from which more columns are shown
constexpr double kWarm = 80, kHot = 87;        // °C; most GPUs slow down at 87
constexpr double kNearlyFull = 97, kFilling = 90;
constexpr std::size_t kMinFlexibleColumns = 12, kMinPodColumns = 20;
constexpr std::string_view kIndent = "  ";  // of a MIG device below its GPU

TopTone state_tone(const std::string& state) {
  if (state == "healthy") return TopTone::kGood;
  if (state == "lost" || state == "quarantined") return TopTone::kBad;
  if (state == "degraded" || state == "draining" || state == "recovering") return TopTone::kWarn;
  return TopTone::kDim;
}
TopTone tone_above(std::optional<double> value, double warn, double bad) {
  if (!value || *value < warn) return TopTone::kPlain;
  return *value < bad ? TopTone::kWarn : TopTone::kBad;
}

// Unknown values are "–".
class NumberFormatter {
 public:
  explicit NumberFormatter(bool utf8) : unknown_(utf8 ? "–" : "-") {}
  std::string format_number(std::optional<double> value, const char* unit = "") const {
    return value ? std::to_string(std::llround(*value)) + unit : unknown_;
  }
  std::string format_of_limit(std::optional<double> value, std::optional<double> most,
                              const char* unit) const {
    if (!value && !most) return unknown_;
    return format_number(value) + "/" + format_number(most) + unit;
  }
  std::string format_gib_of_limit(std::optional<double> value, std::optional<double> most) const {
    if (!value && !most) return unknown_;
    return format_gib(value) + "/" + format_gib(most) + "G";
  }
  std::string format_size(std::optional<double> value) const {
    return value && *value >= 0 ? format_bytes(static_cast<unsigned long long>(*value)) : unknown_;
  }

 private:
  std::string format_gib(std::optional<double> value) const {
    if (!value) return unknown_;
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", *value / kGib);
    return text;
  }
  std::string unknown_;
};

std::optional<double> percent_of(std::optional<double> part, std::optional<double> whole) {
  if (!part || !whole || *whole <= 0) return std::nullopt;
  return *part / *whole * kWhole;
}

class TableBuilder {
 public:
  TableBuilder(const TopModel& model, const TopView& view)
      : model_(model),
        view_(view),
        columns_(table_width(view)),
        format_(view.utf8),
        bar_(columns_ >= kWider  ? 20
             : columns_ >= kWide ? 10
                                 : 5) {}

  TopTable tab_table(TopTab tab) const {
    switch (tab) {
      case TopTab::kGpus:
        return gpu_table();
      case TopTab::kPods:
        return pod_table();
      case TopTab::kProcesses:
        break;
    }
    return process_table();
  }

  std::vector<TopLine> history_lines() const {
    constexpr std::size_t kBefore = 11, kAfter = 5;
    const std::size_t width = columns_ - kBefore - kAfter;
    std::vector<TopLine> lines;
    for (const auto& gpu : model_.gpu_rows(tab_query(view_, TopTab::kGpus))) {
      const auto& points = model_.gpu_history(gpu.uuid);
      const auto line = [&](const char* name, std::optional<double> TopPoint::* value, bool first) {
        const auto last = points.empty() ? std::nullopt : points.back().*value;
        lines.push_back(
            {{first ? fit_to_width(gpu.index, 4, true, view_.utf8) + " " : "     ", TopTone::kStrong},
             {fit_to_width(name, 6, false, view_.utf8), TopTone::kDim},
             {render_spark_line(points, value, model_.sampled_at().value_or(0), width, view_.utf8),
              TopTone::kGood},
             {fit_to_width(format_.format_number(last, "%"), kAfter, true, view_.utf8), TopTone::kPlain}});
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
  // Gives the rest of the line to the column `place`.
  void stretch_column(TopTable& table, std::size_t place, std::size_t most) const {
    std::size_t used = table.columns.size() - 1;
    for (const auto& column : table.columns) used += column.width;
    const std::size_t left = columns_ > used ? columns_ - used : 0;
    table.columns[place].width = std::min(most, table.columns[place].width + left);
  }

  std::vector<TopSpan> device_cells(const TopDevice& device, bool slice, bool with_pods) const {
    const auto& now = device.now;
    const auto memory = percent_of(now.memory, device.memory_total);
    std::vector<TopSpan> cells = {
        {device.index, TopTone::kStrong},
        {std::string(slice ? kIndent : "") + short_name(device.name), TopTone::kPlain},
        {device.state, state_tone(device.state)},
        {render_bar(now.util, bar_, view_.utf8) +
             fit_to_width(format_.format_number(now.util, "%"), 5, true, view_.utf8),
         TopTone::kPlain},
        {render_bar(memory, bar_, view_.utf8) +
             fit_to_width(format_.format_gib_of_limit(now.memory, device.memory_total), 13, true, view_.utf8),
         tone_above(memory, kFilling, kNearlyFull)},
        {format_.format_number(now.temperature, "C"), tone_above(now.temperature, kWarm, kHot)},
        {format_.format_of_limit(now.power, now.power_limit, "W"), TopTone::kPlain}};
    if (columns_ >= kWide) {
      cells.push_back({format_.format_of_limit(now.sm_clock, now.memory_clock, ""), TopTone::kPlain});
      cells.push_back({format_.format_number(now.sm, "%"), TopTone::kPlain});
    }
    if (with_pods) {
      std::string pods;
      for (const auto& pod : device.pods) pods += (pods.empty() ? "" : " ") + pod;
      cells.push_back({pods, TopTone::kPlain});
    }
    return cells;
  }

  // Without the vendor, which is the same for all.
  static std::string short_name(const std::string& name) {
    constexpr std::string_view kMaker = "NVIDIA ";
    return name.starts_with(kMaker) ? name.substr(kMaker.size()) : name;
  }

  TopTable gpu_table() const {
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
    const auto rows = model_.gpu_rows(tab_query(view_, TopTab::kGpus));
    std::size_t longest = kMinFlexibleColumns;
    for (const auto& gpu : rows) {
      longest = std::max(longest, short_name(gpu.name).size());
      for (const auto& slice : gpu.slices) longest = std::max(longest, slice.name.size() + kIndent.size());
    }
    stretch_column(table, 1, longest);
    std::size_t used = table.columns.size();
    for (const auto& column : table.columns) used += column.width;
    const bool with_pods = columns_ >= used + kMinPodColumns;
    if (with_pods) table.columns.push_back({"PODS", std::nullopt, columns_ - used, false});
    for (const auto& gpu : rows) {
      table.rows.push_back({device_cells(gpu, false, with_pods), {gpu.reason, state_tone(gpu.state)}});
      for (const auto& slice : gpu.slices)
        table.rows.push_back({device_cells(slice, true, with_pods), {slice.reason, state_tone(slice.state)}});
    }
    return table;
  }

  TopTable pod_table() const {
    const bool wide = columns_ >= kWide;
    TopTable table;
    table.columns = {{"POD", kPod, kMinFlexibleColumns, false},
                     {"CONTAINER", kContainer, wide ? 20U : 12U, false},
                     {"GPU", kGpu, wide ? 20U : 10U, false},
                     {"SHARES", std::nullopt, 6, true},
                     {"BUSY", kUtil, 6, true},
                     {"MEMORY", kMemory, 9, true}};
    stretch_column(table, 0, columns_);
    for (const auto& pod : model_.pod_rows(tab_query(view_, TopTab::kPods))) {
      table.rows.push_back({{{pod.pod, TopTone::kStrong},
                             {pod.containers, TopTone::kPlain},
                             {pod.devices, TopTone::kPlain},
                             {pod.shares > 0 ? std::to_string(pod.shares) : "", TopTone::kPlain},
                             {format_.format_number(pod.used.busy, "%"), TopTone::kPlain},
                             {format_.format_size(pod.used.memory), TopTone::kPlain}},
                            {}});
    }
    return table;
  }

  TopTable process_table() const {
    TopTable table;
    table.columns = {{"PID", kPid, 8, true},       {"PROGRAM", kName, 16, false},
                     {"GPU", kGpu, 5, false},      {"BUSY", kUtil, 6, true},
                     {"MEMORY", kMemory, 9, true}, {"POD", kPod, kMinFlexibleColumns, false}};
    stretch_column(table, 5, columns_);
    for (const auto& process : model_.process_rows(tab_query(view_, TopTab::kProcesses))) {
      table.rows.push_back({{{std::to_string(process.pid), TopTone::kStrong},
                             {process.name, TopTone::kPlain},
                             {process.device, TopTone::kPlain},
                             {format_.format_number(process.used.busy, "%"), TopTone::kPlain},
                             {format_.format_size(process.used.memory), TopTone::kPlain},
                             {process.pod, TopTone::kPlain}},
                            {}});
    }
    return table;
  }

  const TopModel& model_;
  const TopView& view_;
  unsigned columns_;
  NumberFormatter format_;
  std::size_t bar_;
};

}  // namespace

unsigned table_width(const TopView& view) { return std::max(view.columns, kMinTopColumns); }

TopTable tab_table(const TopModel& model, const TopView& view, TopTab tab) {
  return TableBuilder(model, view).tab_table(tab);
}

std::vector<TopLine> history_lines(const TopModel& model, const TopView& view) {
  return TableBuilder(model, view).history_lines();
}

}  // namespace gpulet::cli
