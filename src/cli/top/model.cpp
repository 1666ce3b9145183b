#include "cli/top/model.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "base/text.h"

namespace gpulet::cli {
namespace {

constexpr double kPercent = 100;
// As many as the node page keeps; bounds the history when the clock jumps.
constexpr std::size_t kMaxPoints = 2000;
constexpr std::int64_t kClockStepMs = 60'000;

const std::array<std::pair<TopColumn, const char*>, 15> kNames = {{{TopColumn::kGpu, "gpu"},
                                                                   {TopColumn::kName, "name"},
                                                                   {TopColumn::kState, "state"},
                                                                   {TopColumn::kUtil, "util"},
                                                                   {TopColumn::kSm, "sm"},
                                                                   {TopColumn::kMemory, "memory"},
                                                                   {TopColumn::kTemperature, "temperature"},
                                                                   {TopColumn::kPower, "power"},
                                                                   {TopColumn::kClock, "clock"},
                                                                   {TopColumn::kPcie, "pcie"},
                                                                   {TopColumn::kNvLink, "nvlink"},
                                                                   {TopColumn::kEcc, "ecc"},
                                                                   {TopColumn::kPod, "pod"},
                                                                   {TopColumn::kContainer, "container"},
                                                                   {TopColumn::kPid, "pid"}}};

bool contains_text(const std::string& text, const std::string& lower_part) {
  return text::lower(text).find(lower_part) != std::string::npos;
}

// A number or a text; neither if unknown.
struct SortKey {
  bool known = true;
  double number = 0;
  std::string text;
};
SortKey sort_key(const std::optional<double>& number) { return {number.has_value(), number.value_or(0), {}}; }
SortKey sort_key(std::string text) { return {!text.empty(), 0, std::move(text)}; }

// "3" before "3:1" before "10".
std::optional<double> device_sort_key(const std::string& index) {
  const auto colon = index.find(':');
  const auto gpu = text::parse_unsigned(index.substr(0, colon));
  if (!gpu) return std::nullopt;
  constexpr double kMostSlices = 1000;
  const auto slice =
      colon == std::string::npos ? std::nullopt : text::parse_unsigned(index.substr(colon + 1));
  return static_cast<double>(*gpu) + (slice ? (static_cast<double>(*slice) + 1) / kMostSlices : 0);
}

// Stable.
template <class Row, class KeyOf>
void sort_rows(std::vector<Row>& rows, bool descending, KeyOf key_of_row) {
  std::ranges::stable_sort(rows, [&](const Row& a, const Row& b) {
    const SortKey x = key_of_row(a), y = key_of_row(b);
    if (x.known != y.known) return x.known;
    const auto left = std::tie(x.number, x.text), right = std::tie(y.number, y.text);
    return descending ? right < left : left < right;
  });
}

// Any uncorrected error outweighs all corrected ones.
std::optional<double> ecc_sort_key(const TopMetrics& now) {
  constexpr double kWeight = 1e9;
  if (!now.ecc_corrected || !now.ecc_uncorrected) return std::nullopt;
  return *now.ecc_uncorrected * kWeight + std::min(*now.ecc_corrected, kWeight - 1);
}

SortKey gpu_key(const TopGpu& gpu, TopColumn column) {
  switch (column) {
    case TopColumn::kName:
      return sort_key(gpu.name);
    case TopColumn::kState:
      return sort_key(gpu.state);
    case TopColumn::kUtil:
      return sort_key(gpu.now.util);
    case TopColumn::kSm:
      return sort_key(gpu.now.sm);
    case TopColumn::kMemory:
      return sort_key(gpu.now.memory);
    case TopColumn::kTemperature:
      return sort_key(gpu.now.temperature);
    case TopColumn::kPower:
      return sort_key(gpu.now.power);
    case TopColumn::kClock:
      return sort_key(gpu.now.sm_clock);
    case TopColumn::kPcie:
      return sort_key(pcie_total(gpu.now));
    case TopColumn::kNvLink:
      return sort_key(nvlink_total(gpu.now));
    case TopColumn::kEcc:
      return sort_key(ecc_sort_key(gpu.now));
    default:
      return sort_key(device_sort_key(gpu.index));
  }
}

std::string first_device(const std::string& devices) { return devices.substr(0, devices.find(',')); }

SortKey pod_key(const TopPodRow& row, TopColumn column) {
  switch (column) {
    case TopColumn::kContainer:
      return sort_key(row.containers);
    case TopColumn::kGpu:
      return sort_key(device_sort_key(first_device(row.devices)));
    case TopColumn::kMemory:
      return sort_key(row.used.memory);
    case TopColumn::kUtil:
      return sort_key(row.used.busy);
    default:
      return sort_key(row.pod);
  }
}

SortKey process_key(const TopProcessRow& row, TopColumn column) {
  switch (column) {
    case TopColumn::kPid:
      return sort_key(static_cast<double>(row.pid));
    case TopColumn::kName:
      return sort_key(row.name);
    case TopColumn::kMemory:
      return sort_key(row.used.memory);
    case TopColumn::kUtil:
      return sort_key(row.used.busy);
    case TopColumn::kPod:
      return sort_key(row.pod);
    default:
      return sort_key(device_sort_key(row.device));
  }
}

bool matches_filter(const TopDevice& device, const std::string& filter) {
  const auto has = [&](const std::string& text) { return contains_text(text, filter); };
  return has(device.name) || has(device.uuid) || has(device.state) || has(device.reason) ||
         has(device.excluded) || std::ranges::any_of(device.pods, has);
}

std::string pod_text(const TopPodName& pod) { return pod.first + "/" + pod.second; }

// The sum is unknown if a part is.
void add_if_known(std::optional<double>& sum, const std::optional<double>& more) {
  sum = sum && more ? std::optional(*sum + *more) : std::nullopt;
}

}  // namespace

const std::vector<TopColumn>& sort_columns(TopTab tab) {
  using enum TopColumn;
  static const std::vector<TopColumn> kGpus = {kGpu, kUtil,   kMemory, kTemperature, kPower, kClock,
                                               kSm,  kNvLink, kPcie,   kEcc,         kName,  kState};
  static const std::vector<TopColumn> kPods = {kPod, kUtil, kMemory, kGpu, kContainer};
  static const std::vector<TopColumn> kProcesses = {kGpu, kUtil, kMemory, kPid, kName, kPod};
  return tab == TopTab::kGpus ? kGpus : tab == TopTab::kPods ? kPods : kProcesses;
}

const char* column_name(TopColumn column) {
  return std::ranges::find(kNames, column, &std::pair<TopColumn, const char*>::first)->second;
}

std::optional<TopColumn> find_column(TopTab tab, std::string_view name) {
  for (const auto column : sort_columns(tab)) {
    if (name == column_name(column)) return column;
  }
  return std::nullopt;
}

bool sorts_descending(TopColumn column) {
  switch (column) {
    case TopColumn::kUtil:
    case TopColumn::kSm:
    case TopColumn::kMemory:
    case TopColumn::kTemperature:
    case TopColumn::kPower:
    case TopColumn::kClock:
    case TopColumn::kPcie:
    case TopColumn::kNvLink:
    case TopColumn::kEcc:
      return true;
    default:
      return false;
  }
}

TopQuery default_query(TopTab tab) {
  const auto column = sort_columns(tab).front();
  return {.sort = column, .descending = sorts_descending(column), .filter = {}};
}

Status TopModel::apply_node_document(std::string_view document) {
  GPULET_TRY_ASSIGN(node_, parse_top_node(document));
  indices_.clear();
  for (const auto& gpu : node_->gpus) {
    indices_[gpu.uuid] = gpu.index;
    for (const auto& slice : gpu.slices) indices_[slice.uuid] = slice.index;
  }
  if (sample_) record_history(*sample_);
  std::erase_if(history_, [&](const auto& one) { return !indices_.contains(one.first); });
  return {};
}

Status TopModel::apply_sample_document(std::string_view document) {
  GPULET_TRY_ASSIGN(TopSample now, parse_top_sample(document));
  // The node's clock was set back: earlier points would be in the future.
  if (sample_ && now.at < sample_->at - kClockStepMs) history_.clear();
  sample_ = std::move(now);
  record_history(*sample_);
  return {};
}

Status TopModel::apply_usage_document(std::string_view document) {
  GPULET_TRY_ASSIGN(usage_, parse_top_usage(document));
  return {};
}

Status TopModel::apply_history_document(std::string_view document) {
  GPULET_TRY_ASSIGN(const auto samples, parse_top_history(document));
  for (const auto& sample : samples) record_history(sample);
  return {};
}

void TopModel::record_history(const TopSample& now) {
  if (!node_) return;
  for (const auto& gpu : node_->gpus) {
    const auto found = now.gpus.find(gpu.uuid);
    if (found == now.gpus.end()) continue;
    TopPoint point{.at = now.at, .util = found->second.util, .memory = std::nullopt};
    if (found->second.memory && gpu.memory_total && *gpu.memory_total > 0)
      point.memory = kPercent * *found->second.memory / *gpu.memory_total;
    auto& points = history_[gpu.uuid];
    const auto place = std::ranges::lower_bound(points, now.at, {}, &TopPoint::at);
    if (place == points.end() || place->at != now.at) points.insert(place, point);
    while (points.size() > kMaxPoints || points.back().at - points.front().at > kTopHistoryMs)
      points.pop_front();
  }
}

const std::deque<TopPoint>& TopModel::gpu_history(const std::string& uuid) const {
  static const std::deque<TopPoint> kNone;
  const auto found = history_.find(uuid);
  return found == history_.end() ? kNone : found->second;
}

TopConsumption TopModel::pod_consumption(const std::string& uuid, const std::string& pod) const {
  const auto slash = std::min(pod.find('/'), pod.size());
  const TopPodName name{pod.substr(0, slash), pod.substr(std::min(slash + 1, pod.size()))};
  const auto found = usage_.pods.find({uuid, name});
  return found == usage_.pods.end() ? TopConsumption{} : found->second;
}

std::string TopModel::device_index(const std::string& uuid) const {
  const auto found = indices_.find(uuid);
  return found == indices_.end() ? std::string() : found->second;
}

std::vector<TopGpu> TopModel::gpu_rows(const TopQuery& query) const {
  std::vector<TopGpu> rows;
  if (!node_) return rows;
  std::map<std::string, std::set<std::string>> pods;
  for (const auto& holder : node_->holders) pods[holder.uuid].insert(pod_text(holder.pod));
  const std::string filter = text::lower(query.filter);
  const auto fill = [&](TopDevice& device, bool mig) {
    if (const auto held = pods.find(device.uuid); held != pods.end())
      device.pods.assign(held->second.begin(), held->second.end());
    if (!sample_) return;
    const auto& all = mig ? sample_->mig : sample_->gpus;
    if (const auto found = all.find(device.uuid); found != all.end()) device.now = found->second;
  };
  for (TopGpu gpu : node_->gpus) {
    fill(gpu, false);
    for (auto& slice : gpu.slices) fill(slice, true);
    if (!matches_filter(gpu, filter)) {
      std::erase_if(gpu.slices, [&](const auto& slice) { return !matches_filter(slice, filter); });
      if (gpu.slices.empty()) continue;
    }
    rows.push_back(std::move(gpu));
  }
  sort_rows(rows, query.descending, [&](const TopGpu& gpu) { return gpu_key(gpu, query.sort); });
  return rows;
}

std::vector<TopPodRow> TopModel::pod_rows(const TopQuery& query) const {
  struct Held {
    std::set<std::string> containers;
    std::map<double, std::string> devices;  // by index
    std::set<std::string> uuids;
    std::size_t shares = 0;
  };
  std::map<TopPodName, Held> all;
  for (const auto& holder : node_ ? node_->holders : std::vector<TopHolder>{}) {
    auto& held = all[holder.pod];
    held.containers.insert(holder.container);
    held.uuids.insert(holder.uuid);
    held.shares += holder.share ? 1 : 0;
    const auto index = device_index(holder.uuid);
    if (const auto key = device_sort_key(index)) held.devices[*key] = index;
  }
  std::vector<TopPodRow> rows;
  const std::string filter = text::lower(query.filter);
  for (const auto& [name, held] : all) {
    TopPodRow row{
        .pod = pod_text(name), .containers = {}, .devices = {}, .shares = held.shares, .used = {0, 0}};
    row.containers = text::join(std::vector(held.containers.begin(), held.containers.end()), ",");
    for (const auto& [key, index] : held.devices) row.devices += (row.devices.empty() ? "" : ",") + index;
    for (const auto& uuid : held.uuids) {
      const auto used = pod_consumption(uuid, row.pod);
      add_if_known(row.used.memory, used.memory);
      add_if_known(row.used.busy, used.busy);
    }
    if (contains_text(row.pod, filter) || contains_text(row.containers, filter))
      rows.push_back(std::move(row));
  }
  sort_rows(rows, query.descending, [&](const TopPodRow& row) { return pod_key(row, query.sort); });
  return rows;
}

std::vector<TopProcessRow> TopModel::process_rows(const TopQuery& query) const {
  std::vector<TopProcessRow> rows;
  const std::string filter = text::lower(query.filter);
  for (const auto& user : usage_.processes) {
    TopProcessRow row{.pid = user.pid,
                      .name = user.name,
                      .device = device_index(user.uuid),
                      .pod = user.pod ? pod_text(*user.pod) : std::string(),
                      .used = user.used};
    if (contains_text(row.name, filter) || contains_text(row.pod, filter) ||
        contains_text(std::to_string(row.pid), filter))
      rows.push_back(std::move(row));
  }
  sort_rows(rows, query.descending, [&](const TopProcessRow& row) { return process_key(row, query.sort); });
  return rows;
}

}  // namespace gpulet::cli
