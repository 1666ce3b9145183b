#include "scheduler/core/cluster_state.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>

#include "scheduler/model/links.h"

namespace gpulet::scheduler {
namespace {

using Kind = ContainerRequest::Kind;

void add_shares(Shares& to, const Shares& what) {
  for (std::size_t i = 0; i < what.size(); ++i) to[i] = static_cast<std::uint16_t>(to[i] + what[i]);
}
void subtract_shares(Shares& from, const Shares& what) {
  for (std::size_t i = 0; i < what.size(); ++i) {
    from[i] = static_cast<std::uint16_t>(from[i] - std::min(from[i], what[i]));
  }
}

std::vector<PodAllocation::Part> allocated_parts(const std::vector<ContainerAllocation>& all) {
  std::map<std::pair<std::size_t, std::size_t>, unsigned> counts;
  for (const auto& given : all) {
    for (const auto& [resource, shares] : given) {
      for (std::size_t unit = 0; unit < shares.size(); ++unit) {
        if (shares[unit] != 0) counts[{resource, unit}] += shares[unit];
      }
    }
  }
  std::vector<PodAllocation::Part> parts;
  for (const auto& [at, count] : counts) parts.push_back({at.first, at.second, count});
  return parts;
}

void sum_free(ClusterNode& node) {
  node.free_total.clear();
  for (const auto& free : node.free) node.free_total.push_back(std::accumulate(free.begin(), free.end(), 0U));
}

}  // namespace

std::optional<std::size_t> ClusterNode::find_resource(const ResourceName& resource) const {
  const auto& all = node.resources;
  const auto found = std::ranges::find(all, resource, &NodeResource::name);
  if (found == all.end()) return std::nullopt;
  return static_cast<std::size_t>(found - all.begin());
}

std::vector<Shares> offered_shares(const GpuNode& node) {
  std::vector<Shares> offered;
  for (const auto& resource : node.resources) {
    offered.emplace_back();
    for (const auto& unit : resource.units)
      offered.back().push_back(static_cast<std::uint16_t>(unit.shares - unit.unavailable));
  }
  return offered;
}

void subtract_parts(std::vector<Shares>& free, const std::vector<PodAllocation::Part>& parts) {
  for (const auto& part : parts) {
    auto& left = free[part.resource][part.unit];
    left = static_cast<std::uint16_t>(left - std::min<unsigned>(left, part.shares));
  }
}

namespace {

// The kubelet's allocation does not say which of a Pod's containers a share belongs to.
std::uint64_t requested_mib(const GpuNode& node, const PodClaim& claim, const PodAllocation::Part& part) {
  const auto& unit = node.resources[part.resource].units[part.unit];
  return claim.memory.mib_of(node.unit_memory_mib(unit)) * part.shares;
}

}  // namespace

void count_without_leaving(ClusterNode& node) {
  node.free = offered_shares(node.node);
  for (auto& of_resource : node.requested_mib) std::ranges::fill(of_resource, 0);
  for (const auto& claim : node.claims) {
    if (claim.leaving) continue;
    subtract_parts(node.free, claim.parts);
    for (const auto& part : claim.parts)
      node.requested_mib[part.resource][part.unit] += requested_mib(node.node, claim, part);
  }
  sum_free(node);
}

std::optional<std::vector<ContainerAllocation>> allocate_devices(const ClusterNode& node,
                                                                 const PodRequest& request,
                                                                 std::vector<Shares>& free) {
  std::vector<ContainerAllocation> all;
  all.reserve(request.containers.size());
  // Devices that init containers held, by resource: the kubelet reuses them, so they are not free. Nearly
  // always empty.
  std::map<std::size_t, Shares> reusable;
  static const Shares kNothing;
  for (const auto& container : request.containers) {
    ContainerAllocation& given = all.emplace_back();
    for (const auto& device : container.devices) {
      const auto resource = node.find_resource(device.resource);
      if (!resource) continue;
      auto& pool = *node.pools[*resource];
      auto& left_free = free[*resource];
      const auto left = reusable.find(*resource);
      if (left == reusable.end()) {
        const Shares& chosen = pool.choose_devices(left_free, kNothing, device.count, node.loads);
        if (chosen.empty()) return std::nullopt;
        given.emplace_back(*resource, chosen);
        subtract_shares(left_free, chosen);
        if (container.kind == Kind::kInit) reusable[*resource] = chosen;
        continue;
      }
      Shares available = left_free;
      add_shares(available, left->second);
      const Shares& chosen = pool.choose_devices(available, left->second, device.count, node.loads);
      if (chosen.empty()) return std::nullopt;
      Shares reused(chosen.size()), fresh = chosen;
      for (std::size_t unit = 0; unit < chosen.size(); ++unit)
        reused[unit] = std::min(chosen[unit], left->second[unit]);
      subtract_shares(fresh, reused);
      subtract_shares(left_free, fresh);
      if (container.kind == Kind::kInit) {
        add_shares(left->second, fresh);
      } else {
        subtract_shares(left->second, reused);  // a running sidecar keeps them
      }
      given.emplace_back(*resource, chosen);
    }
  }
  return all;
}

struct ClusterState::Entry {
  ClusterNode node;
  std::shared_ptr<const NodeLinks> links;
  ModelId model = 0;
  // What each Pod is assumed to hold that the GpuNode does not name yet.
  std::map<std::string, std::vector<PodAllocation::Part>> assumed;
  bool dirty = false;
};

ClusterState::ClusterState() = default;
ClusterState::~ClusterState() = default;

void ClusterState::mark_dirty(Entry& entry) {
  if (!std::exchange(entry.dirty, true)) dirty_.push_back(&entry);
}

void ClusterState::set_node(const std::string& name, GpuNode node) {
  auto& slot = nodes_[name];
  if (!slot) {
    slot = std::make_unique<Entry>();
    slot->node.name = name;
    slot->node.table_node = table_.add_node({});
  }
  Entry& entry = *slot;
  controllers_.set_node(name, std::exchange(node.controllers, {}));
  if (entry.node.node == node && !entry.node.pools.empty()) return;
  entry.node.node = std::move(node);
  entry.node.loads.clear();
  for (const auto& gpu : entry.node.node.gpus) entry.node.loads.push_back(gpu.now);
  std::vector<std::shared_ptr<DevicePool>> pools;
  for (const auto& resource : entry.node.node.resources) {
    pools.push_back(pools_.pool_for(entry.node.node, resource));
  }
  if (pools != entry.node.pools) entry.assumed.clear();  // its devices changed
  entry.node.pools = std::move(pools);
  auto& links = links_[topology_key(entry.node.node)];
  entry.links = links.lock();
  if (!entry.links) {
    entry.links = NodeLinks::make_links(gpu_node_topology(entry.node.node));
    links = entry.links;
    std::erase_if(links_, [](const auto& one) { return one.second.expired(); });
  }
  entry.model = 0;
  if (!entry.node.node.models.empty()) {
    // Beyond the number of models that policies distinguish, the last one stands for the rest.
    entry.model = models_.model_id(entry.node.node.models.front().name)
                      .value_or(static_cast<ModelId>(scheduler::kMaxModels - 1));
  }
  mark_dirty(entry);
}

void ClusterState::remove_node(const std::string& name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end()) return;
  controllers_.set_node(name, {});
  table_.remove_node(found->second->node.table_node);
  std::erase(dirty_, found->second.get());
  nodes_.erase(found);
}

void ClusterState::set_pod(PodRequest pod) {
  const bool holds_devices = !pod.containers.empty() || pod.has_claims;
  if (pod.finished || pod.node.empty() || !holds_devices) return remove_pod(pod.name_space, pod.name);
  std::string key = pod.pod_key();
  auto& known = pods_[key];
  if (known == pod) return;
  if (!known.node.empty() && known.node != pod.node) {  // another Pod with the same name
    const std::string old = known.node;
    pods_of_[old].erase(key);
    if (const auto at = nodes_.find(old); at != nodes_.end()) mark_dirty(*at->second);
  }
  known = std::move(pod);
  pods_of_[known.node].insert(key);
  if (const auto at = nodes_.find(known.node); at != nodes_.end()) mark_dirty(*at->second);
}

void ClusterState::remove_pod(std::string_view name_space, std::string_view name) {
  const std::string key = std::string(name_space).append("/").append(name);
  const auto found = pods_.find(key);
  if (found == pods_.end()) return;
  const std::string node = found->second.node;
  pods_.erase(found);
  if (const auto of = pods_of_.find(node); of != pods_of_.end()) {
    of->second.erase(key);
    if (of->second.empty()) pods_of_.erase(of);
  }
  if (const auto at = nodes_.find(node); at != nodes_.end()) mark_dirty(*at->second);
}

std::optional<LoadCurve> ClusterState::expected_load_of(const PodRequest& pod) const {
  const auto load = controllers_.best_load(controller_of_pod(pod.pod_key()));
  return load ? std::optional(load->curve) : std::nullopt;
}

std::optional<ControllerLoad> ClusterState::load_known_elsewhere(const PodRequest& pod) const {
  const std::string controller = controller_of_pod(pod.pod_key());
  if (controllers_.is_known_on(pod.node, controller)) return std::nullopt;
  return controllers_.best_load(controller);
}

const ClusterNode* ClusterState::find_node(std::string_view name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end()) return nullptr;
  recompute_nodes();
  return &found->second->node;
}

const PodRequest* ClusterState::find_pod(const std::string& key) const {
  const auto found = pods_.find(key);
  return found == pods_.end() ? nullptr : &found->second;
}

NodeTable& ClusterState::node_table() {
  recompute_nodes();
  return table_;
}

std::vector<std::string> ClusterState::node_names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : nodes_) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> ClusterState::pod_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, pod] : pods_) keys.push_back(key);
  return keys;
}

void ClusterState::set_nominated(PodRequest pod) {
  remove_nominated(pod.name_space, pod.name);
  if (pod.nominated_node.empty() || pod.containers.empty() || pod.finished) return;
  if (const auto at = nodes_.find(pod.nominated_node); at != nodes_.end()) mark_dirty(*at->second);
  std::string key = pod.pod_key();
  nominated_.emplace(std::move(key), std::move(pod));
}

void ClusterState::remove_nominated(std::string_view name_space, std::string_view name) {
  const auto found = nominated_.find(std::string(name_space).append("/").append(name));
  if (found == nominated_.end()) return;
  if (const auto at = nodes_.find(found->second.nominated_node); at != nodes_.end()) mark_dirty(*at->second);
  nominated_.erase(found);
}

std::vector<std::string> ClusterState::nominated_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, pod] : nominated_) keys.push_back(key);
  return keys;
}

void ClusterState::mark_pods_synced() {
  if (std::exchange(pods_synced_, true)) return;
  for (const auto& [name, entry] : nodes_) mark_dirty(*entry);
}

void ClusterState::recompute_nodes() {
  for (Entry* entry : dirty_) recompute_nodes(*entry);
  dirty_.clear();
}

// Pods assumed before keep their devices unless someone else got them; then new Pods follow in order.
void ClusterState::assume_pods(Entry& entry, const std::vector<const PodRequest*>& pods) {
  ClusterNode& view = entry.node;
  std::map<std::string, std::vector<PodAllocation::Part>> kept;
  for (const auto* pod : pods) {
    const auto before = entry.assumed.find(pod->pod_key());
    if (before == entry.assumed.end()) continue;
    const auto is_free = [&](const auto& part) { return view.free[part.resource][part.unit] >= part.shares; };
    if (!std::ranges::all_of(before->second, is_free)) continue;
    subtract_parts(view.free, before->second);
    kept.insert(*before);
  }
  for (const auto* pod : pods) {
    if (kept.contains(pod->pod_key())) continue;
    std::vector<Shares> free = view.free;
    // The kubelet rejects a Pod that the node cannot serve, so it holds nothing.
    const auto given = allocate_devices(view, *pod, free);
    if (!given) continue;
    view.free = std::move(free);
    kept.emplace(pod->pod_key(), allocated_parts(*given));
  }
  for (const auto* pod : pods) {
    const auto found = kept.find(pod->pod_key());
    if (found != kept.end()) view.claims.push_back({found->first, found->second, true});
  }
  entry.assumed = std::move(kept);
}

void ClusterState::recompute_nodes(Entry& entry) {
  entry.dirty = false;
  ClusterNode& view = entry.node;
  view.held.clear();
  view.requested_mib.clear();
  view.claims.clear();
  view.free = offered_shares(view.node);
  for (const auto& free : view.free) {
    view.held.emplace_back(free.size());
    view.requested_mib.emplace_back(free.size());
  }
  std::set<std::string_view> seen;
  for (const auto& holder : view.node.allocations) {
    seen.insert(holder.pod);
    // A GpuNode that still names a Pod that is gone or moved is older than the Pod list.
    const auto pod = pods_.find(holder.pod);
    const bool here = pod != pods_.end() && pod->second.node == view.name;
    if (here || !pods_synced_) view.claims.push_back({holder.pod, holder.parts, false});
  }
  for (const auto& claim : view.claims) subtract_parts(view.free, claim.parts);
  std::vector<const PodRequest*> assumed;
  if (const auto of = pods_of_.find(view.name); of != pods_of_.end()) {
    for (const auto& key : of->second) {
      const auto& pod = pods_.at(key);
      if (!seen.contains(key) && !pod.containers.empty()) assumed.push_back(&pod);
    }
  }
  std::ranges::sort(assumed, {},
                    [](const auto* pod) { return std::tie(pod->bound_at, pod->name_space, pod->name); });
  assume_pods(entry, assumed);
  for (auto& claim : view.claims) {
    const auto pod = pods_.find(claim.pod);
    claim.leaving = pod != pods_.end() && pod->second.leaving;
    claim.memory = pod == pods_.end() ? fraction::MemoryAmount{} : pod->second.greatest_memory();
    for (const auto& part : claim.parts) {
      auto& held = view.held[part.resource][part.unit];
      const unsigned shares = view.node.resources[part.resource].units[part.unit].shares;
      held = static_cast<std::uint16_t>(std::min(shares, held + part.shares));
      view.requested_mib[part.resource][part.unit] += requested_mib(view.node, claim, part);
    }
  }
  sum_free(view);
  view.nominated.clear();
  for (const auto& [key, pod] : nominated_) {
    if (pod.nominated_node == view.name) view.nominated.push_back(pod);
  }
  std::ranges::stable_sort(view.nominated, std::greater{}, &PodRequest::priority);
  table_.update_node(view.table_node, make_node_state(view, entry.model, entry.links));
}

unsigned unit_milli(const ClusterNode& view, std::size_t resource, std::size_t unit) {
  const auto& one = view.node.resources[resource].units[unit];
  if (!one.profile.empty()) {
    const auto whole = view.node.unit_model(one).memory_mib;
    return whole == 0
               ? kWhole
               : static_cast<unsigned>(std::min<std::uint64_t>(kWhole, one.memory_mib * kWhole / whole));
  }
  unsigned parts = 0;  // resources that offer the GPU
  for (const auto& other : view.node.resources) {
    parts += static_cast<unsigned>(std::ranges::count_if(
        other.units, [&](const ResourceUnit& u) { return u.gpu == one.gpu && u.profile.empty(); }));
  }
  return kWhole / std::max(parts, 1U);
}

NodeState ClusterState::make_node_state(const ClusterNode& view, ModelId model,
                                        std::shared_ptr<const NodeLinks> links) const {
  NodeState state;
  state.model = model;
  state.links = std::move(links);
  state.gpus = static_cast<std::uint8_t>(std::min(view.node.gpus.size(), kMaxGpus));
  for (std::size_t resource = 0; resource < view.node.resources.size(); ++resource) {
    const auto& units = view.node.resources[resource].units;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      if (units[unit].gpu >= state.gpus || units[unit].shares == 0) continue;
      auto& free = state.free[units[unit].gpu];
      const unsigned more = unit_milli(view, resource, unit) * view.free[resource][unit] / units[unit].shares;
      free = static_cast<std::uint16_t>(std::min(kWhole, free + more));
    }
  }
  for (std::size_t gpu = 0; gpu < state.gpus; ++gpu) {
    const auto& one = view.node.gpus[gpu];
    // Without a forecast nobody but a process of no Pod uses it: as now.
    state.load[gpu] = flat_curve(one.now.busy_percent, 0);
    if (const auto curve = decode_curve(one.load)) state.load[gpu] = *curve;
    state.load[gpu].memory = std::max(state.load[gpu].memory, one.now.memory_percent);
  }
  return state;
}

}  // namespace gpulet::scheduler
