#include "scheduler/core/cluster_state.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "scheduler/model/links.h"

namespace gpulet::scheduler {
namespace {

void append_number(std::string& text, std::size_t number) { text.append(std::to_string(number)).append(" "); }

void write_cache_key(const Shares& free, const Shares& required, unsigned count, std::string& key) {
  key.assign(reinterpret_cast<const char*>(free.data()), free.size() * sizeof(Shares::value_type));
  key.append(reinterpret_cast<const char*>(required.data()), required.size() * sizeof(Shares::value_type));
  key.append(reinterpret_cast<const char*>(&count), sizeof count);
}

}  // namespace

std::string topology_key(const GpuNode& node) {
  const auto links = encode_link_matrix(node.pairs, node.gpus.size());
  std::string build = links.pairs + " ";
  for (const auto& kind : links.classes) build.append(kind).append(" ");
  for (const auto& gpu : node.gpus)
    append_number(build, gpu.numa ? static_cast<std::size_t>(*gpu.numa) + 1 : 0);
  return build;
}

DevicePool::DevicePool(const GpuNode& node, const NodeResource& resource) {
  std::vector<placement::Device> devices;
  for (std::size_t unit = 0; unit < resource.units.size(); ++unit) {
    const auto& one = resource.units[unit];
    first_share_.push_back(ids_.size());
    for (unsigned share = 0; share < one.shares; ++share) {
      DeviceId id(std::to_string(ids_.size()));
      position_of_.emplace(id.str(), ids_.size());
      unit_of_.push_back(unit);
      devices.push_back({.id = id,
                         .gpu = one.gpu,
                         .shared = resource.sharing != Sharing::kNone || !one.profile.empty(),
                         .memory_slice = one.slice,
                         .memory_percent = unit_share_percent(node, resource, one)});
      has_shares_ |= devices.back().shared;
      ids_.push_back(std::move(id));
    }
  }
  chooser_ = placement::Chooser::build_chooser(gpu_node_topology(node), std::move(devices), node.rules);
}

void DevicePool::append_device_ids(const Shares& shares, std::vector<DeviceId>& ids) const {
  for (std::size_t unit = 0; unit < first_share_.size(); ++unit) {
    for (std::size_t share = 0; share < shares[unit]; ++share)
      ids.push_back(ids_[first_share_[unit] + share]);
  }
}

// Only what decides a choice: of whole GPUs, whether they are held outside of Pods.
void DevicePool::append_loads_to_key(std::span<const placement::GpuLoad> loads) {
  if (std::ranges::all_of(loads, [](const auto& load) { return load == placement::GpuLoad{}; })) return;
  for (const auto& load : loads) {
    cache_key_ += static_cast<char>(load.held_outside_pods);
    if (!has_shares_) continue;
    cache_key_ += static_cast<char>(load.busy_percent);
    cache_key_ += static_cast<char>(load.memory_percent);
  }
}

const Shares& DevicePool::choose_devices(const Shares& free, const Shares& required, unsigned count,
                                         std::span<const placement::GpuLoad> loads) {
  write_cache_key(free, required, count, cache_key_);
  append_loads_to_key(loads);
  if (const auto known = cache_.find(cache_key_); known != cache_.end()) return known->second;
  if (cache_.size() >= kMaxCached) cache_.clear();
  auto& result = cache_[cache_key_];
  const auto total = std::accumulate(free.begin(), free.end(), std::size_t{0});
  if (count == 0 || total < count) return result;
  std::vector<DeviceId> available, must;
  append_device_ids(free, available);
  // Devices left by an init container count only as far as this container needs them.
  Shares taken = required;
  taken.resize(free.size());
  std::size_t left = count;
  for (std::size_t unit = 0; unit < taken.size(); ++unit) {
    taken[unit] = static_cast<std::uint16_t>(std::min<std::size_t>({taken[unit], free[unit], left}));
    left -= taken[unit];
  }
  append_device_ids(taken, must);
  const auto choice = chooser_->choose_devices(available, must, count, loads);
  if (!choice) return result;
  result.resize(free.size());
  for (const auto& id : choice->devices) ++result[unit_of_[position_of_.at(id.str())]];
  return result;
}

std::shared_ptr<DevicePool> DevicePoolCache::pool_for(const GpuNode& node, const NodeResource& resource) {
  std::string key = topology_key(node);
  append_number(key, static_cast<std::size_t>(node.rules.policy));
  append_number(key, static_cast<std::size_t>(node.rules.shared));
  append_number(key, static_cast<std::size_t>(node.rules.load));
  append_number(key, static_cast<std::size_t>(resource.sharing != Sharing::kNone));
  for (const auto& unit : resource.units) {
    append_number(key, unit.gpu);
    append_number(key, unit.slice);
    append_number(key, unit.shares);
    append_number(key, unit.profile.empty() ? 0 : 1);
    append_number(key, unit_share_percent(node, resource, unit));
  }
  auto& kept = pools_[key];
  auto pool = kept.lock();
  if (pool) return pool;
  pool = std::make_shared<DevicePool>(node, resource);
  kept = pool;
  std::erase_if(pools_, [](const auto& entry) { return entry.second.expired(); });
  return pool;
}

namespace {

using Kind = ContainerRequest::Kind;

// An object may report a share as held more than once; the counters must not overflow.
constexpr unsigned kMaxHeld = std::numeric_limits<std::uint16_t>::max();

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

}  // namespace

std::optional<std::size_t> ClusterNode::find_resource(const ResourceName& resource) const {
  const auto& all = node.resources;
  const auto found = std::ranges::find(all, resource, &NodeResource::name);
  if (found == all.end()) return std::nullopt;
  return static_cast<std::size_t>(found - all.begin());
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
  table_.remove_node(found->second->node.table_node);
  std::erase(dirty_, found->second.get());
  nodes_.erase(found);
}

void ClusterState::set_pod(PodRequest pod) {
  if (pod.finished || pod.node.empty() || pod.containers.empty()) return remove_pod(pod.name_space, pod.name);
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
    for (const auto& part : before->second) {
      auto& free = view.free[part.resource][part.unit];
      free = static_cast<std::uint16_t>(free - part.shares);
    }
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
  view.free.clear();
  view.held.clear();
  view.requested_mib.clear();
  view.claims.clear();
  for (const auto& resource : view.node.resources) {
    Shares free;
    for (const auto& unit : resource.units)
      free.push_back(static_cast<std::uint16_t>(unit.shares - unit.unavailable));
    view.held.emplace_back(free.size());
    view.requested_mib.emplace_back(free.size());
    view.free.push_back(std::move(free));
  }
  std::set<std::string_view> seen;
  for (const auto& holder : view.node.allocations) {
    seen.insert(holder.pod);
    // A GpuNode that still names a Pod that is gone or moved is older than the Pod list.
    const auto pod = pods_.find(holder.pod);
    const bool here = pod != pods_.end() && pod->second.node == view.name;
    if (here || !pods_synced_) view.claims.push_back({holder.pod, holder.parts, false});
  }
  for (const auto& claim : view.claims) {
    for (const auto& part : claim.parts) {
      auto& free = view.free[part.resource][part.unit];
      free = static_cast<std::uint16_t>(free - std::min<unsigned>(free, part.shares));
    }
  }
  std::vector<const PodRequest*> assumed;
  if (const auto of = pods_of_.find(view.name); of != pods_of_.end()) {
    for (const auto& key : of->second) {
      if (!seen.contains(key)) assumed.push_back(&pods_.at(key));
    }
  }
  std::ranges::sort(assumed, {},
                    [](const auto* pod) { return std::tie(pod->bound_at, pod->name_space, pod->name); });
  assume_pods(entry, assumed);
  for (const auto& claim : view.claims) {
    const auto pod = pods_.find(claim.pod);
    const std::uint64_t memory = pod == pods_.end() ? 0 : pod->second.constraints.memory_mib;
    for (const auto& part : claim.parts) {
      auto& held = view.held[part.resource][part.unit];
      held = static_cast<std::uint16_t>(std::min(kMaxHeld, held + part.shares));
      view.requested_mib[part.resource][part.unit] += memory * part.shares;
    }
  }
  view.free_total.clear();
  for (const auto& free : view.free) {
    view.free_total.push_back(std::accumulate(free.begin(), free.end(), 0U));
  }
  table_.update_node(view.table_node, make_node_state(view, entry.model, entry.links));
}

unsigned unit_share_percent(const GpuNode& node, const NodeResource& resource, const ResourceUnit& unit) {
  if (resource.sharing == Sharing::kNone || !unit.profile.empty()) return 0;
  const auto whole = node.unit_memory_mib(unit);
  if (unit.share_mib == 0 || whole == 0) return placement::equal_share_percent(unit.shares);
  return static_cast<unsigned>(std::min<std::uint64_t>((unit.share_mib * 100 + whole / 2) / whole, 100));
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
