#include "cli/kubectl/cluster_gpus.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "extender/gpu_use.h"
#include "k8s/objects.h"

namespace gpulet::cli::kubectl {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRemoved = "removed";

void add_units(const scheduler::ClusterNode& node, std::vector<ClusterGpu>& gpus) {
  for (std::size_t resource = 0; resource < node.node.resources.size(); ++resource) {
    const auto& units = node.node.resources[resource].units;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      const auto& one = units[unit];
      auto& gpu = gpus[one.gpu];
      if (!one.profile.empty())
        gpu.mig_devices.push_back({one.profile, node.held[resource][unit], one.shares, one.unavailable});
    }
  }
}

void add_holders(const scheduler::ClusterNode& node, std::vector<ClusterGpu>& gpus) {
  for (const auto& claim : node.claims) {
    const auto slash = claim.pod.find('/');
    if (slash == std::string::npos) continue;  // not a Pod's name
    const auto name_space = claim.pod.substr(0, slash), pod = claim.pod.substr(slash + 1);
    for (const auto& part : claim.parts) {
      const auto& resource = node.node.resources[part.resource];
      auto& holders = gpus[resource.units[part.unit].gpu].holders;
      const auto same = std::ranges::find_if(holders, [&](const GpuHolder& holder) {
        return holder.name_space == name_space && holder.pod == pod && holder.resource == resource.name.str();
      });
      if (same != holders.end()) {
        same->shares += part.shares;
      } else {
        holders.push_back({name_space, pod, resource.name.str(), part.shares});
      }
    }
  }
}

// "2/4"; a dash for a GPU that no resource offers.
std::string use_cell(const ClusterGpu& gpu) {
  return gpu.shares == 0 ? kDash : std::to_string(gpu.held) + "/" + std::to_string(gpu.shares);
}

// "1g.10gb 2/4,3g.40gb 0/1".
std::string mig_cell(const ClusterGpu& gpu) {
  std::map<std::string, std::pair<unsigned, unsigned>> uses;
  for (const auto& device : gpu.mig_devices) {
    auto& [held, shares] = uses[device.profile];
    held += device.held;
    shares += device.shares;
  }
  std::string text;
  for (const auto& [profile, use] : uses)
    text += (text.empty() ? "" : ",") + profile + " " + std::to_string(use.first) + "/" +
            std::to_string(use.second);
  return dash_if_empty(text);
}

std::string holders_cell(const ClusterGpu& gpu, const TableStyle& style) {
  std::vector<std::string> pods;
  for (const auto& holder : gpu.holders) {
    auto pod = holder.name_space + "/" + holder.pod;
    if (std::ranges::find(pods, pod) == pods.end()) pods.push_back(std::move(pod));
  }
  return dash_if_empty(style.wide ? text::join(pods, ", ") : text::join_limited(pods));
}

std::string percent_cell(unsigned percent) { return std::to_string(percent) + "%"; }

struct ViewColumn {
  Column column;
  std::string (*cell)(const ClusterGpu& gpu, const TableStyle& style);
};

const ViewColumn kNode{{"NODE"}, [](const ClusterGpu& gpu, const TableStyle&) { return gpu.node; }};
const ViewColumn kIndex{{"GPU"},
                        [](const ClusterGpu& gpu, const TableStyle&) { return std::to_string(gpu.index); }};
const ViewColumn kModel{
    {"MODEL"}, [](const ClusterGpu& gpu, const TableStyle& style) { return model_cell(gpu.model, style); }};
const ViewColumn kMemory{
    {"MEMORY"}, [](const ClusterGpu& gpu, const TableStyle&) { return format_bytes(gpu.memory_mib << 20); }};
const ViewColumn kUsed{{"USED"}, [](const ClusterGpu& gpu, const TableStyle&) { return use_cell(gpu); }};
const ViewColumn kState{{"HEALTH"}, [](const ClusterGpu& gpu, const TableStyle&) { return gpu.state; }};
const ViewColumn kReason{{"REASON"}, [](const ClusterGpu& gpu, const TableStyle&) {
                           return dash_if_empty(text::join(gpu.reasons, "; "));
                         }};
const ViewColumn kHolders{{"HELD BY"}, holders_cell};
const ViewColumn kBusy{
    {"BUSY"}, [](const ClusterGpu& gpu, const TableStyle&) { return percent_cell(gpu.busy_percent); }};
const ViewColumn kMemoryUse{
    {"MEMORY%"}, [](const ClusterGpu& gpu, const TableStyle&) { return percent_cell(gpu.memory_percent); }};
const ViewColumn kUuid{{"UUID", ColumnUse::kWide},
                       [](const ClusterGpu& gpu, const TableStyle&) { return dash_if_empty(gpu.uuid); }};
const ViewColumn kNuma{{"NUMA", ColumnUse::kWide}, [](const ClusterGpu& gpu, const TableStyle&) {
                         return gpu.numa ? std::to_string(*gpu.numa) : std::string(kDash);
                       }};
const ViewColumn kMig{{"MIG", ColumnUse::kWide},
                      [](const ClusterGpu& gpu, const TableStyle&) { return mig_cell(gpu); }};
const ViewColumn kDriver{{"DRIVER", ColumnUse::kWide},
                         [](const ClusterGpu& gpu, const TableStyle&) { return dash_if_empty(gpu.driver); }};
const ViewColumn kWideHolders{{"HELD BY", ColumnUse::kWide}, holders_cell};

const std::vector<ViewColumn>& view_columns(GpuView view) {
  static const std::vector<ViewColumn> kListColumns{kNode, kIndex, kModel, kMemory, kUsed,   kState,
                                                    kUuid, kNuma,  kMig,   kDriver, kHolders};
  static const std::vector<ViewColumn> kHealthColumns{kNode,        kIndex, kModel, kUuid,
                                                      kWideHolders, kState, kReason};
  static const std::vector<ViewColumn> kTopColumns{kNode,      kIndex, kModel, kBusy,
                                                   kMemoryUse, kUsed,  kState, kHolders};
  return view == GpuView::kList ? kListColumns : view == GpuView::kHealth ? kHealthColumns : kTopColumns;
}

// The rows alone. Nothing is cut: kubectl's users copy names out of tables.
std::string draw_gpus(const std::vector<ClusterGpu>& gpus, GpuView view, const TableStyle& style) {
  std::vector<Column> columns;
  std::vector<const ViewColumn*> shown;
  for (const auto& one : view_columns(view)) {
    if (one.column.use == ColumnUse::kWide && !style.wide) continue;
    columns.push_back(one.column);
    shown.push_back(&one);
  }
  TableRows rows;
  for (const auto& gpu : gpus) {
    auto& row = rows.emplace_back();
    for (const auto* one : shown) row.push_back(k8s::sanitize_line(one->cell(gpu, style)));
  }
  return draw_table(columns, rows, {.wide = true, .headers = style.headers});
}

Json gpu_json(const ClusterGpu& gpu) {
  Json json{{"node", gpu.node},
            {"index", gpu.index},
            {"uuid", gpu.uuid},
            {"model", gpu.model},
            {"memoryMiB", gpu.memory_mib},
            {"driver", gpu.driver},
            {"state", gpu.state},
            {"inService", gpu.in_service},
            {"reasons", gpu.reasons},
            {"busyPercent", gpu.busy_percent},
            {"memoryPercent", gpu.memory_percent},
            {"shares", {{"total", gpu.shares}, {"held", gpu.held}, {"unavailable", gpu.unavailable}}},
            {"migDevices", Json::array()},
            {"heldBy", Json::array()}};
  if (gpu.numa) json["numa"] = *gpu.numa;
  for (const auto& device : gpu.mig_devices)
    json["migDevices"].push_back(
        {{"profile", device.profile},
         {"shares", {{"total", device.shares}, {"held", device.held}, {"unavailable", device.unavailable}}}});
  for (const auto& holder : gpu.holders)
    json["heldBy"].push_back({{"namespace", holder.name_space},
                              {"pod", holder.pod},
                              {"resource", holder.resource},
                              {"shares", holder.shares}});
  return json;
}

}  // namespace

bool ClusterGpu::needs_attention() const {
  const bool is_normal = state == enum_name(health::DeviceState::kHealthy) ||
                         state == enum_name(health::DeviceState::kUnmonitored);
  return !in_service || !is_normal || !reasons.empty();
}

std::vector<ClusterGpu> cluster_gpus(const scheduler::ClusterNode& node) {
  const auto uses = extender::gpu_uses(node);
  std::vector<ClusterGpu> gpus;
  for (std::size_t index = 0; index < node.node.gpus.size(); ++index) {
    const auto& one = node.node.gpus[index];
    const auto& model = node.node.models[one.model];
    gpus.push_back({.node = node.name,
                    .index = index,
                    .uuid = one.uuid,
                    .model = model.name,
                    .driver = node.node.driver,
                    .memory_mib = model.memory_mib,
                    .numa = one.numa,
                    .state = std::string(extender::shown_state(one)),
                    .in_service = is_allocatable(one.state) && uses[index].unavailable == 0,
                    .reasons = {},
                    .busy_percent = one.now.busy_percent,
                    .memory_percent = one.now.memory_percent,
                    .held = uses[index].held,
                    .shares = uses[index].shares,
                    .unavailable = uses[index].unavailable,
                    .mig_devices = {},
                    .holders = {}});
  }
  for (auto& fault : extender::gpu_faults(node.node))
    gpus[fault.gpu].reasons.push_back(std::move(fault.reason));
  add_units(node, gpus);
  add_holders(node, gpus);
  return gpus;
}

void GpuCollection::apply_object(std::string_view gpu_node) {
  auto decoded = scheduler::decode_gpu_node(gpu_node);
  if (!decoded) {
    const auto name = k8s::metadata_string(gpu_node, "name");
    remove_node(name);
    problems_[name] = "cannot decode a GpuNode: " + decoded.error().full_message();
    return;
  }
  problems_.erase(decoded->name);
  // All nodes stay in the state: what it computes of a machine's links is shared by equal machines.
  state_.set_node(decoded->name, std::move(decoded->node));
  nodes_[decoded->name] = cluster_gpus(*state_.find_node(decoded->name));
}

void GpuCollection::remove_node(const std::string& name) {
  state_.remove_node(name);
  nodes_.erase(name);
  problems_.erase(name);
}

std::vector<std::string> GpuCollection::node_names() const {
  std::vector<std::string> names;
  for (const auto& [name, gpus] : nodes_) names.push_back(name);
  for (const auto& [name, problem] : problems_) names.push_back(name);
  return names;
}

std::vector<ClusterGpu> GpuCollection::gpus() const {
  std::vector<ClusterGpu> all;
  for (const auto& [name, gpus] : nodes_) all.insert(all.end(), gpus.begin(), gpus.end());
  return all;
}

bool GpuSelection::selects_gpu(const ClusterGpu& gpu) const {
  if (!nodes.empty() && !nodes.contains(gpu.node)) return false;
  if (labelled_nodes && !labelled_nodes->contains(gpu.node)) return false;
  if (attention_only && !gpu.needs_attention()) return false;
  return name_space.empty() || std::ranges::any_of(gpu.holders, [&](const GpuHolder& holder) {
           return holder.name_space == name_space;
         });
}

std::vector<ClusterGpu> select_gpus(const std::vector<ClusterGpu>& gpus, const GpuSelection& selection,
                                    LoadOrder order) {
  std::vector<ClusterGpu> selected;
  std::ranges::copy_if(gpus, std::back_inserter(selected),
                       [&](const ClusterGpu& gpu) { return selection.selects_gpu(gpu); });
  if (order == LoadOrder::kNone) return selected;
  const auto load = order == LoadOrder::kBusy ? &ClusterGpu::busy_percent : &ClusterGpu::memory_percent;
  std::ranges::stable_sort(selected, std::ranges::greater(), load);
  return selected;
}

std::string service_summary(const std::vector<ClusterGpu>& all) {
  std::set<std::string_view> nodes;
  std::size_t withdrawn = 0;
  for (const auto& gpu : all) {
    nodes.insert(gpu.node);
    withdrawn += gpu.in_service ? 0 : 1;
  }
  return text::count_text(all.size(), "GPU") + " on " + text::count_text(nodes.size(), "node") + ", " +
         (withdrawn == 0 ? "all in service" : std::to_string(withdrawn) + " out of service") + "\n";
}

std::string gpu_table(const std::vector<ClusterGpu>& gpus, GpuView view, const TableStyle& style) {
  return gpus.empty() ? std::string() : draw_gpus(gpus, view, style);
}

std::string gpu_document(const std::vector<ClusterGpu>& gpus) {
  Json document{{"gpus", Json::array()}};
  for (const auto& gpu : gpus) document["gpus"].push_back(gpu_json(gpu));
  return document_text(document);
}

std::string node_names_text(const std::vector<ClusterGpu>& gpus) {
  std::set<std::string_view> names;
  std::string text;
  for (const auto& gpu : gpus) {
    if (names.insert(gpu.node).second) text += "node/" + gpu.node + "\n";
  }
  return text;
}

std::string GpuTableWatch::update_rows(const std::vector<ClusterGpu>& all,
                                       const std::vector<ClusterGpu>& selected) {
  std::map<Key, ClusterGpu> now;
  std::vector<ClusterGpu> rows;
  for (const auto& gpu : selected) {
    const Key key(gpu.node, gpu.index);
    const auto before = printed_.find(key);
    const auto row = [&](const ClusterGpu& one) {
      return draw_gpus({one}, view_, {.wide = style_.wide, .headers = false});
    };
    // What the table does not show is no change.
    const bool is_same =
        before != printed_.end() && (before->second == gpu || row(before->second) == row(gpu));
    if (!is_same) rows.push_back(gpu);
    now.emplace(key, gpu);
  }
  for (auto& [key, gpu] : printed_) {
    if (now.contains(key)) continue;
    const auto found = std::ranges::find_if(
        all, [&](const ClusterGpu& one) { return one.node == key.first && one.index == key.second; });
    rows.push_back(found != all.end() ? *found : std::move(gpu));
    if (found == all.end()) rows.back().state = kRemoved;
  }
  printed_ = std::move(now);
  const auto text = gpu_table(rows, view_, style_);
  if (!text.empty()) style_.headers = false;
  return text;
}

}  // namespace gpulet::cli::kubectl
