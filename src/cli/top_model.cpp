#include "cli/top_model.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "base/text.h"

namespace gpulet::cli {
namespace {

constexpr double kPercent = 100;
// The node's page keeps as many at most; a clock that jumps must not let them grow.
constexpr std::size_t kMostPoints = 2000;
constexpr std::int64_t kClockSetMs = 60'000;

const std::array<std::pair<TopColumn, const char*>, 12> kNames = {{{TopColumn::kGpu, "gpu"},
                                                                   {TopColumn::kName, "name"},
                                                                   {TopColumn::kState, "state"},
                                                                   {TopColumn::kUtil, "util"},
                                                                   {TopColumn::kSm, "sm"},
                                                                   {TopColumn::kMemory, "memory"},
                                                                   {TopColumn::kTemperature, "temperature"},
                                                                   {TopColumn::kPower, "power"},
                                                                   {TopColumn::kClock, "clock"},
                                                                   {TopColumn::kPod, "pod"},
                                                                   {TopColumn::kContainer, "container"},
                                                                   {TopColumn::kPid, "pid"}}};

bool contains(const std::string& text, const std::string& lower_part) {
  return text::lower(text).find(lower_part) != std::string::npos;
}

// What a row is sorted by: a number or a text, or neither when it is not known.
struct Key {
  bool known = true;
  double number = 0;
  std::string text;
};
Key key_of(const std::optional<double>& number) { return {number.has_value(), number.value_or(0), {}}; }
Key key_of(std::string text) { return {!text.empty(), 0, std::move(text)}; }

// "3" before "3:1" before "10".
std::optional<double> index_key(const std::string& index) {
  const auto colon = index.find(':');
  const auto gpu = text::parse_unsigned(index.substr(0, colon));
  if (!gpu) return std::nullopt;
  constexpr double kMostSlices = 1000;
  const auto slice =
      colon == std::string::npos ? std::nullopt : text::parse_unsigned(index.substr(colon + 1));
  return static_cast<double>(*gpu) + (slice ? (static_cast<double>(*slice) + 1) / kMostSlices : 0);
}

// Equal rows stay as they are.
template <class Row, class KeyOf>
void sort_rows(std::vector<Row>& rows, bool descending, KeyOf key_of_row) {
  std::ranges::stable_sort(rows, [&](const Row& a, const Row& b) {
    const Key x = key_of_row(a), y = key_of_row(b);
    if (x.known != y.known) return x.known;
    const auto left = std::tie(x.number, x.text), right = std::tie(y.number, y.text);
    return descending ? right < left : left < right;
  });
}

Key gpu_key(const TopGpu& gpu, TopColumn column) {
  switch (column) {
    case TopColumn::kName:
      return key_of(gpu.name);
    case TopColumn::kState:
      return key_of(gpu.state);
    case TopColumn::kUtil:
      return key_of(gpu.now.util);
    case TopColumn::kSm:
      return key_of(gpu.now.sm);
    case TopColumn::kMemory:
      return key_of(gpu.now.memory);
    case TopColumn::kTemperature:
      return key_of(gpu.now.temperature);
    case TopColumn::kPower:
      return key_of(gpu.now.power);
    case TopColumn::kClock:
      return key_of(gpu.now.sm_clock);
    default:
      return key_of(index_key(gpu.index));
  }
}

std::string first_of(const std::string& devices) { return devices.substr(0, devices.find(',')); }

Key pod_key(const TopPodRow& row, TopColumn column) {
  switch (column) {
    case TopColumn::kContainer:
      return key_of(row.containers);
    case TopColumn::kGpu:
      return key_of(index_key(first_of(row.devices)));
    case TopColumn::kMemory:
      return key_of(row.used.memory);
    case TopColumn::kUtil:
      return key_of(row.used.busy);
    default:
      return key_of(row.pod);
  }
}

Key process_key(const TopProcessRow& row, TopColumn column) {
  switch (column) {
    case TopColumn::kPid:
      return key_of(static_cast<double>(row.pid));
    case TopColumn::kName:
      return key_of(row.name);
    case TopColumn::kMemory:
      return key_of(row.used.memory);
    case TopColumn::kUtil:
      return key_of(row.used.busy);
    case TopColumn::kPod:
      return key_of(row.pod);
    default:
      return key_of(index_key(row.device));
  }
}

bool takes(const TopDevice& device, const std::string& filter) {
  const auto has = [&](const std::string& text) { return contains(text, filter); };
  return has(device.name) || has(device.uuid) || has(device.state) || has(device.reason) ||
         std::ranges::any_of(device.pods, has);
}

std::string pod_text(const TopPodName& pod) { return pod.first + "/" + pod.second; }

// What is not known of one is not known of all.
void add(std::optional<double>& sum, const std::optional<double>& more) {
  sum = sum && more ? std::optional(*sum + *more) : std::nullopt;
}

}  // namespace

const std::vector<TopColumn>& columns_of(TopTab tab) {
  using enum TopColumn;
  static const std::vector<TopColumn> kGpus = {kGpu,   kUtil, kMemory, kTemperature, kPower,
                                               kClock, kSm,   kName,   kState};
  static const std::vector<TopColumn> kPods = {kPod, kUtil, kMemory, kGpu, kContainer};
  static const std::vector<TopColumn> kProcesses = {kGpu, kUtil, kMemory, kPid, kName, kPod};
  return tab == TopTab::kGpus ? kGpus : tab == TopTab::kPods ? kPods : kProcesses;
}

const char* name_of(TopColumn column) {
  return std::ranges::find(kNames, column, &std::pair<TopColumn, const char*>::first)->second;
}

std::optional<TopColumn> column_of(TopTab tab, std::string_view name) {
  for (const auto column : columns_of(tab)) {
    if (name == name_of(column)) return column;
  }
  return std::nullopt;
}

bool largest_first(TopColumn column) {
  switch (column) {
    case TopColumn::kUtil:
    case TopColumn::kSm:
    case TopColumn::kMemory:
    case TopColumn::kTemperature:
    case TopColumn::kPower:
    case TopColumn::kClock:
      return true;
    default:
      return false;
  }
}

TopQuery default_query(TopTab tab) {
  const auto column = columns_of(tab).front();
  return {.sort = column, .descending = largest_first(column), .filter = {}};
}

Status TopModel::take_node(std::string_view document) {
  GPULET_TRY_ASSIGN(node_, parse_top_node(document));
  indices_.clear();
  for (const auto& gpu : node_->gpus) {
    indices_[gpu.uuid] = gpu.index;
    for (const auto& slice : gpu.slices) indices_[slice.uuid] = slice.index;
  }
  if (now_) remember(*now_);
  std::erase_if(history_, [&](const auto& one) { return !indices_.contains(one.first); });
  return {};
}

Status TopModel::take_now(std::string_view document) {
  GPULET_TRY_ASSIGN(TopNow now, parse_top_now(document));
  // The node's clock was set back: what was before would be in the future.
  if (now_ && now.at < now_->at - kClockSetMs) history_.clear();
  now_ = std::move(now);
  remember(*now_);
  return {};
}

Status TopModel::take_use(std::string_view document) {
  GPULET_TRY_ASSIGN(use_, parse_top_use(document));
  return {};
}

Status TopModel::take_history(std::string_view document) {
  GPULET_TRY_ASSIGN(const auto samples, parse_top_history(document));
  for (const auto& sample : samples) remember(sample);
  return {};
}

void TopModel::remember(const TopNow& now) {
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
    while (points.size() > kMostPoints || points.back().at - points.front().at > kTopHistoryMs)
      points.pop_front();
  }
}

const std::deque<TopPoint>& TopModel::history(const std::string& uuid) const {
  static const std::deque<TopPoint> kNone;
  const auto found = history_.find(uuid);
  return found == history_.end() ? kNone : found->second;
}

std::string TopModel::index_of(const std::string& uuid) const {
  const auto found = indices_.find(uuid);
  return found == indices_.end() ? std::string() : found->second;
}

std::vector<TopGpu> TopModel::gpus(const TopQuery& query) const {
  std::vector<TopGpu> rows;
  if (!node_) return rows;
  std::map<std::string, std::set<std::string>> pods;
  for (const auto& holder : node_->holders) pods[holder.uuid].insert(pod_text(holder.pod));
  const std::string filter = text::lower(query.filter);
  const auto fill = [&](TopDevice& device, bool mig) {
    if (const auto held = pods.find(device.uuid); held != pods.end())
      device.pods.assign(held->second.begin(), held->second.end());
    if (!now_) return;
    const auto& all = mig ? now_->mig : now_->gpus;
    if (const auto found = all.find(device.uuid); found != all.end()) device.now = found->second;
  };
  for (TopGpu gpu : node_->gpus) {
    fill(gpu, false);
    for (auto& slice : gpu.slices) fill(slice, true);
    if (!takes(gpu, filter)) {
      std::erase_if(gpu.slices, [&](const auto& slice) { return !takes(slice, filter); });
      if (gpu.slices.empty()) continue;
    }
    rows.push_back(std::move(gpu));
  }
  sort_rows(rows, query.descending, [&](const TopGpu& gpu) { return gpu_key(gpu, query.sort); });
  return rows;
}

std::vector<TopPodRow> TopModel::pods(const TopQuery& query) const {
  struct Held {
    std::set<std::string> containers;
    std::map<double, std::string> devices;  // by place
    std::set<std::string> uuids;
    std::size_t shares = 0;
  };
  std::map<TopPodName, Held> all;
  for (const auto& holder : node_ ? node_->holders : std::vector<TopHolder>{}) {
    auto& held = all[holder.pod];
    held.containers.insert(holder.container);
    held.uuids.insert(holder.uuid);
    held.shares += holder.share ? 1 : 0;
    const auto index = index_of(holder.uuid);
    if (const auto key = index_key(index)) held.devices[*key] = index;
  }
  std::vector<TopPodRow> rows;
  const std::string filter = text::lower(query.filter);
  for (const auto& [name, held] : all) {
    TopPodRow row{
        .pod = pod_text(name), .containers = {}, .devices = {}, .shares = held.shares, .used = {0, 0}};
    row.containers = text::join(std::vector(held.containers.begin(), held.containers.end()), ",");
    for (const auto& [key, index] : held.devices) row.devices += (row.devices.empty() ? "" : ",") + index;
    for (const auto& uuid : held.uuids) {
      const auto used = use_.pods.find({uuid, name});
      add(row.used.memory, used == use_.pods.end() ? std::nullopt : used->second.memory);
      add(row.used.busy, used == use_.pods.end() ? std::nullopt : used->second.busy);
    }
    if (contains(row.pod, filter) || contains(row.containers, filter)) rows.push_back(std::move(row));
  }
  sort_rows(rows, query.descending, [&](const TopPodRow& row) { return pod_key(row, query.sort); });
  return rows;
}

std::vector<TopProcessRow> TopModel::processes(const TopQuery& query) const {
  std::vector<TopProcessRow> rows;
  const std::string filter = text::lower(query.filter);
  for (const auto& user : use_.processes) {
    TopProcessRow row{.pid = user.pid,
                      .name = user.name,
                      .device = index_of(user.uuid),
                      .pod = user.pod ? pod_text(*user.pod) : std::string(),
                      .used = user.used};
    if (contains(row.name, filter) || contains(row.pod, filter) || contains(std::to_string(row.pid), filter))
      rows.push_back(std::move(row));
  }
  sort_rows(rows, query.descending, [&](const TopProcessRow& row) { return process_key(row, query.sort); });
  return rows;
}

}  // namespace gpulet::cli
