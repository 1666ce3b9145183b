#include "cli/top/panel.h"

#include <algorithm>
#include <set>

#include "cli/top/cells.h"

namespace gpulet::cli {
namespace {

constexpr unsigned kShare = 38;  // percent of the screen
constexpr std::size_t kMinWidth = 60, kMaxWidth = 100;
constexpr std::size_t kMinGraph = 2, kMaxGraph = 8;  // lines
// Lines of other things: title, two labels, axis, four of numbers, and some processes with their header.
constexpr std::size_t kBesideGraphs = 14;

// The device of the tab's selected row, else of its first one; empty without rows.
std::string shown_device(const TopModel& model, const TopView& view) {
  const auto& query = tab_query(view, view.tab);
  const auto selected = selected_row(view, view.tab);
  const auto device_of = [&](const auto& rows, auto key_of, auto devices_of) -> std::string {
    if (rows.empty()) return {};
    const auto found = std::ranges::find_if(rows, [&](const auto& row) { return key_of(row) == selected; });
    return devices_of(found == rows.end() ? rows.front() : *found);
  };
  switch (view.tab) {
    case TopTab::kPods:
      return device_of(
          model.pod_rows(query), [](const TopPodRow& row) { return row.pod; },
          [](const TopPodRow& row) { return row.devices.substr(0, row.devices.find(',')); });
    case TopTab::kProcesses:
      return device_of(
          model.process_rows(query),
          [](const TopProcessRow& row) { return std::to_string(row.pid) + "@" + row.device; },
          [](const TopProcessRow& row) { return row.device; });
    case TopTab::kGpus:
      break;
  }
  const auto rows = model.gpu_rows(query);
  for (const auto& gpu : rows) {
    const bool of_slice =
        std::ranges::any_of(gpu.slices, [&](const auto& slice) { return slice.uuid == selected; });
    if (gpu.uuid == selected || of_slice) return gpu.index;
  }
  return rows.empty() ? std::string() : rows.front().index;
}

bool is_of_gpu(const std::string& device, const TopGpu& gpu) {
  return device == gpu.index || device.starts_with(gpu.index + ":");
}

class PanelBuilder {
 public:
  PanelBuilder(const TopModel& model, const TopView& view, const TopGpu& gpu, std::size_t width,
               std::size_t rows)
      : model_(model), view_(view), gpu_(gpu), width_(width), rows_(rows), format_(view.utf8) {}

  std::vector<TopLine> build_lines() {
    const auto& now = gpu_.now;
    lines_.push_back({{"GPU " + gpu_.index, TopTone::kStrong},
                      {"  " + gpu_.name + "  "},
                      {gpu_.state, state_tone(gpu_.state)}});
    const auto memory = percent_of(now.memory, gpu_.memory_total);
    add_graph("utilization", format_.format_number(now.util, "%"), &TopPoint::util, util_tone(now.util));
    add_graph("memory",
              format_.format_gib_of_limit(now.memory, gpu_.memory_total) + "  " +
                  format_.format_number(memory, "%"),
              &TopPoint::memory, memory_tone(memory));
    const std::string ago = "15 min ago", present = "now";
    lines_.push_back(
        {{ago + std::string(width_ - ago.size() - present.size(), ' ') + present, TopTone::kDim}});
    add_numbers();
    add_processes();
    if (lines_.size() > rows_) lines_.resize(rows_);
    return std::move(lines_);
  }

 private:
  void add_graph(const char* name, const std::string& value, std::optional<double> TopPoint::* member,
                 TopTone tone) {
    const std::size_t room = rows_ > kBesideGraphs ? (rows_ - kBesideGraphs) / 2 : 0;
    lines_.push_back({{std::string(name) + "  ", TopTone::kDim}, {value, TopTone::kStrong}});
    for (auto& line : render_graph(model_.gpu_history(gpu_.uuid), member, model_.sampled_at().value_or(0),
                                   width_, std::clamp(room, kMinGraph, kMaxGraph), graph_style(view_)))
      lines_.push_back({{std::move(line), tone}});
  }

  void add_numbers() {
    const auto& now = gpu_.now;
    add_line({"temperature", format_.format_number(now.temperature, "C")},
             {"power", format_.format_of_limit(now.power, now.power_limit, "W")});
    add_line({"PCIe rx", format_.format_rate(now.pcie_rx)}, {"tx", format_.format_rate(now.pcie_tx)});
    if (now.nvlink_rx || now.nvlink_tx) {
      add_line({"NVLink rx", format_.format_rate(now.nvlink_rx)}, {"tx", format_.format_rate(now.nvlink_tx)});
    } else {
      add_line({"NVLink", format_.format_rate(now.nvlink)}, {});
    }
    add_line({"ECC corrected", format_.format_number(now.ecc_corrected)},
             {"uncorrected", format_.format_number(now.ecc_uncorrected)});
    if (now.ecc_uncorrected.value_or(0) > 0) lines_.back().back().tone = TopTone::kBad;
  }

  // Two names with their values, each pair in half of the width; without a second name, one.
  void add_line(const std::pair<std::string, std::string>& first,
                const std::pair<std::string, std::string>& second) {
    TopLine line = {{first.first + " ", TopTone::kDim}, {first.second}};
    if (!second.first.empty()) {
      const std::size_t half = width_ / 2 - first.first.size() - 1;
      line.back().text = fit_to_width(first.second, half, false, view_.utf8);
      line.push_back({second.first + " ", TopTone::kDim});
      line.push_back({second.second});
    }
    lines_.push_back(std::move(line));
  }

  void add_processes() {
    constexpr std::size_t kPid = 7, kDevice = 5, kBusy = 5, kMemory = 9, kWide = 70;
    const std::size_t program = width_ < kWide ? 10 : 14;
    const std::size_t device = gpu_.mig ? kDevice + 1 : 0;
    const std::size_t pod = width_ - (kPid + program + kBusy + kMemory + 4 + device);
    const auto add = [&](const TopProcessRow& row, const std::string& pid, const std::string& busy,
                         const std::string& memory, TopTone tone) {
      const auto fit = [&](const std::string& text, std::size_t width, bool right) {
        return fit_to_width(text, width, right, view_.utf8) + " ";
      };
      std::string text = fit(pid, kPid, true) + fit(row.name, program, false);
      if (gpu_.mig) text += fit(row.device, kDevice, false);
      text += fit(busy, kBusy, true) + fit(memory, kMemory, true);
      lines_.push_back({{text + fit_to_width(row.pod, pod, false, view_.utf8), tone}});
    };
    add({.pid = 0, .name = "PROGRAM", .device = "GPU", .pod = "POD", .used = {}}, "PID", "BUSY", "MEMORY",
        TopTone::kHeader);
    const auto rows = process_rows();
    for (const auto& row : rows) {
      add(row, row.pid == 0 ? "" : std::to_string(row.pid), format_.format_number(row.used.busy, "%"),
          format_.format_size(row.used.memory), TopTone::kPlain);
    }
    if (rows.empty()) lines_.push_back({{"no processes", TopTone::kDim}});
    if (lines_.size() <= rows_ || rows_ == 0) return;
    const auto hidden = std::to_string(lines_.size() - rows_ + 1);
    lines_.resize(rows_ - 1);
    lines_.push_back({{hidden + " more", TopTone::kDim}});
  }

  // Its processes, then Pods whose processes are not known, with pid 0 and their use of the device.
  std::vector<TopProcessRow> process_rows() const {
    std::vector<TopProcessRow> rows;
    std::set<std::string> pods;
    for (auto& row : model_.process_rows({.sort = TopColumn::kMemory, .descending = true, .filter = {}})) {
      if (!is_of_gpu(row.device, gpu_)) continue;
      pods.insert(row.pod);
      rows.push_back(std::move(row));
    }
    const auto add_pods = [&](const TopDevice& device) {
      for (const auto& pod : device.pods) {
        if (pods.insert(pod).second)
          rows.push_back({.pid = 0,
                          .name = {},
                          .device = device.index,
                          .pod = pod,
                          .used = model_.pod_consumption(device.uuid, pod)});
      }
    };
    add_pods(gpu_);
    for (const auto& slice : gpu_.slices) add_pods(slice);
    return rows;
  }

  const TopModel& model_;
  const TopView& view_;
  const TopGpu& gpu_;
  std::size_t width_, rows_;
  NumberFormatter format_;
  std::vector<TopLine> lines_;
};

}  // namespace

std::size_t panel_width(const TopView& view) {
  return std::clamp<std::size_t>(view.columns * kShare / 100, kMinWidth, kMaxWidth);
}

std::vector<TopLine> panel_lines(const TopModel& model, const TopView& view, std::size_t width,
                                 std::size_t rows) {
  const auto device = shown_device(model, view);
  for (const auto& gpu : model.gpu_rows(default_query(TopTab::kGpus))) {
    if (!device.empty() && is_of_gpu(device, gpu))
      return PanelBuilder(model, view, gpu, width, rows).build_lines();
  }
  return {};
}

}  // namespace gpulet::cli
