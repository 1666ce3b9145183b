#include "cli/top/tables.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::cli {
namespace {

using enum TopColumn;

constexpr std::size_t kWidePods = 110;  // width from which Pods' columns are wider
constexpr std::size_t kShortBar = 5, kLongBar = 10, kLongerBar = 20;
constexpr double kWarm = 80, kHot = 87;  // °C; most GPUs slow down at 87
constexpr std::size_t kMinFlexibleColumns = 12, kMinPodColumns = 20;
constexpr std::string_view kIndent = "  ";  // of a MIG device below its GPU

TopTone tone_above(std::optional<double> value, double warn, double bad) {
  if (!value || *value < warn) return TopTone::kPlain;
  return *value < bad ? TopTone::kWarn : TopTone::kBad;
}

// Without the vendor, which is the same for all.
std::string short_name(const std::string& name) {
  constexpr std::string_view kMaker = "NVIDIA ";
  return name.starts_with(kMaker) ? name.substr(kMaker.size()) : name;
}

class TableBuilder {
 public:
  TableBuilder(const TopModel& model, const TopView& view, std::size_t columns)
      : model_(model), view_(view), columns_(columns), format_(view.utf8) {}

  TopTable gpu_table() {
    const auto rows = model_.gpu_rows(tab_query(view_, TopTab::kGpus));
    choose_gpu_columns(rows);
    TopTable table;
    for (const auto& [column, cell] : gpu_columns_) table.columns.push_back(column);
    for (const auto& gpu : rows) {
      add_device(table, gpu);
      for (auto slice : gpu.slices) {
        slice.name = std::string(kIndent) + slice.name;
        add_device(table, slice);
      }
    }
    return table;
  }

  TopTable pod_table() const {
    const bool wide = columns_ >= kWidePods;
    const bool with_containers = columns_ >= 72, with_shares = columns_ >= 50;
    TopTable table;
    table.columns.push_back({"POD", kPod, kMinFlexibleColumns, false});
    if (with_containers) table.columns.push_back({"CONTAINER", kContainer, wide ? 20U : 12U, false});
    table.columns.push_back({"GPU", kGpu, wide ? 20U : with_containers ? 10U : 7U, false});
    if (with_shares) table.columns.push_back({"SHARES", std::nullopt, 6, true});
    table.columns.push_back({"BUSY", kUtil, 6, true});
    table.columns.push_back({"MEMORY", kMemory, 9, true});
    stretch_column(table.columns, 0);
    for (const auto& pod : model_.pod_rows(tab_query(view_, TopTab::kPods))) {
      TopTable::Row row{.key = pod.pod, .cells = {{{pod.pod, TopTone::kStrong}}}, .below = {}};
      if (with_containers) row.cells.push_back({{pod.containers}});
      row.cells.push_back({{pod.devices}});
      if (with_shares) row.cells.push_back({{pod.shares > 0 ? std::to_string(pod.shares) : ""}});
      row.cells.push_back({{format_.format_number(pod.used.busy, "%")}});
      row.cells.push_back({{format_.format_size(pod.used.memory)}});
      table.rows.push_back(std::move(row));
    }
    return table;
  }

  TopTable process_table() const {
    TopTable table;
    table.columns = {{"PID", kPid, 8, true},
                     {"PROGRAM", kName,
                      columns_ >= 70   ? 16U
                      : columns_ >= 44 ? kMinFlexibleColumns
                                       : 8U,
                      false},
                     {"GPU", kGpu, 5, false},
                     {"BUSY", kUtil, 6, true},
                     {"MEMORY", kMemory, 9, true}};
    if (columns_ >= 58) {
      table.columns.push_back({"POD", kPod, kMinFlexibleColumns, false});
      stretch_column(table.columns, table.columns.size() - 1);
    }
    for (const auto& process : model_.process_rows(tab_query(view_, TopTab::kProcesses))) {
      TopTable::Row row{.key = std::to_string(process.pid) + "@" + process.device,
                        .cells = {{{std::to_string(process.pid), TopTone::kStrong}},
                                  {{process.name}},
                                  {{process.device}},
                                  {{format_.format_number(process.used.busy, "%")}},
                                  {{format_.format_size(process.used.memory)}},
                                  {{process.pod}}},
                        .below = {}};
      row.cells.resize(table.columns.size());
      table.rows.push_back(std::move(row));
    }
    return table;
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
  using Cell = TopLine (TableBuilder::*)(const TopDevice&) const;
  using GpuColumn = std::pair<TopTableColumn, Cell>;

  // Gives the rest of the line to the column `place`.
  void stretch_column(std::vector<TopTableColumn>& all, std::size_t place) const {
    const std::size_t used = columns_used(all);
    if (columns_ > used) all[place].width += columns_ - used;
  }
  static std::size_t columns_used(const std::vector<TopTableColumn>& all) {
    std::size_t used = all.empty() ? 0 : all.size() - 1;
    for (const auto& column : all) used += column.width;
    return used;
  }

  // In the order of the line. What is left out first when it is too narrow: the bar of memory, names, the bar
  // of utilization, power, temperature. A wider line never loses a column.
  void choose_gpu_columns(const std::vector<TopGpu>& rows) {
    bar_ = columns_ >= 58 ? kShortBar : 0;
    memory_bar_ = columns_ >= 76 ? kShortBar : 0;
    const bool with_names = columns_ >= 71;
    gpu_columns_ = {{{"GPU", kGpu, 5, false}, &TableBuilder::index_cell}};
    if (with_names)
      gpu_columns_.push_back({{"NAME", kName, kMinFlexibleColumns, false}, &TableBuilder::name_cell});
    gpu_columns_.push_back({{"STATE", kState, 11, false}, &TableBuilder::state_cell});
    gpu_columns_.push_back({{"UTIL", kUtil, bar_ + 5, false}, &TableBuilder::util_cell});
    gpu_columns_.push_back({{"MEMORY", kMemory, memory_bar_ + 13, false}, &TableBuilder::memory_cell});
    if (columns_ >= 43)
      gpu_columns_.push_back({{"TEMP", kTemperature, 5, true}, &TableBuilder::temperature_cell});
    if (columns_ >= 53) gpu_columns_.push_back({{"POWER", kPower, 9, true}, &TableBuilder::power_cell});
    if (with_names) stretch_gpu_names(rows);
    const GpuColumn more[] = {{{"NVLINK RX/TX", kNvLink, 12, true}, &TableBuilder::nvlink_cell},
                              {{"PCIE RX/TX", kPcie, 10, true}, &TableBuilder::pcie_cell},
                              {{"ECC", kEcc, 7, true}, &TableBuilder::ecc_cell},
                              {{"SM/MEM MHz", kClock, 11, true}, &TableBuilder::clock_cell},
                              {{"SM", kSm, 5, true}, &TableBuilder::sm_cell}};
    for (const auto& column : more) {
      if (columns_left() <= column.first.width) return;
      gpu_columns_.push_back(column);
    }
    lengthen_bars(kLongBar, 0);
    lengthen_bars(kLongerBar, 2 * kMinPodColumns);
    if (columns_left() > kMinPodColumns)
      gpu_columns_.push_back({{"PODS", std::nullopt, columns_left() - 1, false}, &TableBuilder::pods_cell});
  }

  // If `spare` columns are left beside them.
  void lengthen_bars(std::size_t bar, std::size_t spare) {
    if (columns_left() < 2 * (bar - bar_) + spare) return;
    for (auto& [column, cell] : gpu_columns_) {
      if (column.sort == kUtil || column.sort == kMemory) column.width += bar - bar_;
    }
    bar_ = memory_bar_ = bar;
  }

  void stretch_gpu_names(const std::vector<TopGpu>& rows) {
    std::size_t longest = kMinFlexibleColumns;
    for (const auto& gpu : rows) {
      longest = std::max(longest, short_name(gpu.name).size());
      for (const auto& slice : gpu.slices) longest = std::max(longest, slice.name.size() + kIndent.size());
    }
    auto& width = gpu_columns_[1].first.width;
    width = std::min(longest, width + columns_left());
  }

  std::size_t columns_left() const {
    std::size_t used = gpu_columns_.size() - 1;
    for (const auto& one : gpu_columns_) used += one.first.width;
    return columns_ > used ? columns_ - used : 0;
  }

  // The fault, else what keeps it from Pods: as in `gpulet health`.
  static TopSpan device_note(const TopDevice& device) {
    if (!device.reason.empty()) return {device.reason, state_tone(device.state)};
    return {device.excluded, TopTone::kDim};
  }

  void add_device(TopTable& table, const TopDevice& device) const {
    TopTable::Row row{.key = device.uuid, .cells = {}, .below = device_note(device)};
    for (const auto& one : gpu_columns_) row.cells.push_back((this->*one.second)(device));
    table.rows.push_back(std::move(row));
  }

  TopLine index_cell(const TopDevice& device) const { return {{device.index, TopTone::kStrong}}; }
  TopLine name_cell(const TopDevice& device) const { return {{short_name(device.name)}}; }
  TopLine state_cell(const TopDevice& device) const { return {{device.state, state_tone(device.state)}}; }
  TopLine util_cell(const TopDevice& device) const {
    auto cell = bar_spans(device.now.util, bar_, view_.utf8, util_tone(device.now.util));
    cell.push_back({fit_to_width(format_.format_number(device.now.util, "%"), 5, true, view_.utf8)});
    return cell;
  }
  TopLine memory_cell(const TopDevice& device) const {
    const auto percent = percent_of(device.now.memory, device.memory_total);
    auto cell = bar_spans(percent, memory_bar_, view_.utf8, memory_tone(percent));
    const auto text = format_.format_gib_of_limit(device.now.memory, device.memory_total);
    cell.push_back({fit_to_width(text, 13, true, view_.utf8), tone_above(percent, kFilling, kNearlyFull)});
    return cell;
  }
  TopLine temperature_cell(const TopDevice& device) const {
    const auto& celsius = device.now.temperature;
    return {{format_.format_number(celsius, "C"), tone_above(celsius, kWarm, kHot)}};
  }
  TopLine power_cell(const TopDevice& device) const {
    return {{format_.format_of_limit(device.now.power, device.now.power_limit, "W")}};
  }
  TopLine clock_cell(const TopDevice& device) const {
    return {{format_.format_of_limit(device.now.sm_clock, device.now.memory_clock, "")}};
  }
  TopLine sm_cell(const TopDevice& device) const { return {{format_.format_number(device.now.sm, "%")}}; }
  TopLine nvlink_cell(const TopDevice& device) const {
    const auto& now = device.now;
    if (!now.nvlink_rx && !now.nvlink_tx) return {{format_.format_short_rate(now.nvlink)}};
    return rates_cell(now.nvlink_rx, now.nvlink_tx);
  }
  TopLine pcie_cell(const TopDevice& device) const {
    return rates_cell(device.now.pcie_rx, device.now.pcie_tx);
  }
  TopLine rates_cell(std::optional<double> received, std::optional<double> transmitted) const {
    if (!received && !transmitted) return {{format_.format_short_rate({})}};
    return {{format_.format_short_rate(received) + "/" + format_.format_short_rate(transmitted)}};
  }
  TopLine ecc_cell(const TopDevice& device) const {
    const auto& now = device.now;
    const bool uncorrected = now.ecc_uncorrected.value_or(0) > 0;
    return {{format_.format_of_limit(now.ecc_corrected, now.ecc_uncorrected, ""),
             uncorrected ? TopTone::kBad : TopTone::kPlain}};
  }
  TopLine pods_cell(const TopDevice& device) const { return {{text::join(device.pods, " ")}}; }

  const TopModel& model_;
  const TopView& view_;
  std::size_t columns_;
  NumberFormatter format_;
  std::size_t bar_ = 0, memory_bar_ = 0;
  std::vector<GpuColumn> gpu_columns_;
};

}  // namespace

TopTable tab_table(const TopModel& model, const TopView& view, TopTab tab, std::size_t columns) {
  TableBuilder builder(model, view, columns);
  switch (tab) {
    case TopTab::kGpus:
      return builder.gpu_table();
    case TopTab::kPods:
      return builder.pod_table();
    case TopTab::kProcesses:
      break;
  }
  return builder.process_table();
}

std::vector<TopLine> history_lines(const TopModel& model, const TopView& view, std::size_t columns) {
  return TableBuilder(model, view, columns).history_lines();
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

std::vector<TopBodyLine> body_lines(const TopTable& table, std::size_t columns, const std::string& selected,
                                    bool utf8) {
  std::vector<TopBodyLine> lines;
  for (const auto& row : table.rows) {
    const bool is_selected = !selected.empty() && row.key == selected;
    TopLine line;
    for (std::size_t i = 0; i < row.cells.size(); ++i) {
      const auto& column = table.columns[i];
      const auto& cell = row.cells[i];
      if (!line.empty()) line.push_back({" "});
      if (cell.size() > 1) {
        line.insert(line.end(), cell.begin(), cell.end());
      } else {
        const TopSpan span = cell.empty() ? TopSpan{} : cell.front();
        line.push_back({fit_to_width(span.text, column.width, column.right, utf8), span.tone});
      }
    }
    for (auto& span : line) span.selected = is_selected;
    lines.push_back({std::move(line), row.key});
    if (row.below.text.empty()) continue;
    constexpr std::size_t kBelowIndent = 6;
    lines.push_back({{{std::string(kBelowIndent, ' ')},
                      {fit_to_width(row.below.text, columns - kBelowIndent, false, utf8), row.below.tone}},
                     row.key});
  }
  return lines;
}

}  // namespace gpulet::cli
