#include "scheduler/cluster_view.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

#include "scheduler/links.h"

namespace gpulet::scheduler {
namespace {

using Kind = ContainerRequest::Kind;

// An object may say that a share is held more than once; nothing overflows for it.
constexpr unsigned kMaxHeld = std::numeric_limits<std::uint16_t>::max();

void add(Shares& to, const Shares& what) {
  for (std::size_t i = 0; i < what.size(); ++i) to[i] = static_cast<std::uint16_t>(to[i] + what[i]);
}
void subtract(Shares& from, const Shares& what) {
  for (std::size_t i = 0; i < what.size(); ++i) {
    from[i] = static_cast<std::uint16_t>(from[i] - std::min(from[i], what[i]));
  }
}

std::vector<PodHolding::Part> parts_of(const std::vector<Given>& all) {
  std::map<std::pair<std::size_t, std::size_t>, unsigned> counts;
  for (const auto& given : all) {
    for (const auto& [resource, shares] : given) {
      for (std::size_t unit = 0; unit < shares.size(); ++unit) {
        if (shares[unit] != 0) counts[{resource, unit}] += shares[unit];
      }
    }
  }
  std::vector<PodHolding::Part> parts;
  for (const auto& [at, count] : counts) parts.push_back({at.first, at.second, count});
  return parts;
}

}  // namespace

std::optional<std::size_t> NodeView::find(const ResourceName& resource) const {
  const auto& all = node.resources;
  const auto found = std::ranges::find(all, resource, &NodeResource::name);
  if (found == all.end()) return std::nullopt;
  return static_cast<std::size_t>(found - all.begin());
}

std::optional<std::vector<Given>> allocate(const NodeView& node, const PodRequest& request,
                                           std::vector<Shares>& free) {
  std::vector<Given> all;
  all.reserve(request.containers.size());
  // What init containers have had, by resource: handed on by the kubelet, and no longer free. Nearly always
  // nothing.
  std::map<std::size_t, Shares> reusable;
  static const Shares kNothing;
  for (const auto& container : request.containers) {
    Given& given = all.emplace_back();
    for (const auto& demand : container.demands) {
      const auto resource = node.find(demand.resource);
      if (!resource) continue;
      auto& pool = *node.pools[*resource];
      auto& left_free = free[*resource];
      const auto left = reusable.find(*resource);
      if (left == reusable.end()) {
        const Shares& chosen = pool.choose(left_free, kNothing, demand.count);
        if (chosen.empty()) return std::nullopt;
        given.emplace_back(*resource, chosen);
        subtract(left_free, chosen);
        if (container.kind == Kind::kInit) reusable[*resource] = chosen;
        continue;
      }
      Shares available = left_free;
      add(available, left->second);
      const Shares& chosen = pool.choose(available, left->second, demand.count);
      if (chosen.empty()) return std::nullopt;
      Shares reused(chosen.size()), fresh = chosen;
      for (std::size_t unit = 0; unit < chosen.size(); ++unit)
        reused[unit] = std::min(chosen[unit], left->second[unit]);
      subtract(fresh, reused);
      subtract(left_free, fresh);
      if (container.kind == Kind::kInit) {
        add(left->second, fresh);
      } else {
        subtract(left->second, reused);  // whoever goes on running keeps them
      }
      given.emplace_back(*resource, chosen);
    }
  }
  return all;
}

struct ClusterView::Entry {
  NodeView view;
  std::shared_ptr<const NodeLinks> links;
  ModelId model = 0;
  // What was assumed of each Pod that the object does not name yet.
  std::map<std::string, std::vector<PodHolding::Part>> assumed;
  bool dirty = false;
};

ClusterView::ClusterView() = default;
ClusterView::~ClusterView() = default;

void ClusterView::dirty(Entry& entry) {
  if (!std::exchange(entry.dirty, true)) dirty_.push_back(&entry);
}

void ClusterView::set_node(const std::string& name, GpuNode node) {
  auto& slot = nodes_[name];
  if (!slot) {
    slot = std::make_unique<Entry>();
    slot->view.name = name;
    slot->view.place = table_.add({});
  }
  Entry& entry = *slot;
  if (entry.view.node == node && !entry.view.pools.empty()) return;
  entry.view.node = std::move(node);
  std::vector<std::shared_ptr<DevicePool>> pools;
  for (const auto& resource : entry.view.node.resources) {
    pools.push_back(pools_.pool_of(entry.view.node, resource));
  }
  if (pools != entry.view.pools) entry.assumed.clear();  // its devices are others
  entry.view.pools = std::move(pools);
  auto& links = links_[build_of(entry.view.node)];
  entry.links = links.lock();
  if (!entry.links) {
    entry.links = NodeLinks::make(topology_of(entry.view.node));
    links = entry.links;
    std::erase_if(links_, [](const auto& one) { return one.second.expired(); });
  }
  entry.model = 0;
  if (!entry.view.node.models.empty()) {
    // Beyond as many models as policies tell apart, the last stands for the rest.
    entry.model = models_.id(entry.view.node.models.front().name)
                      .value_or(static_cast<ModelId>(scheduler::kMaxModels - 1));
  }
  dirty(entry);
}

void ClusterView::remove_node(const std::string& name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end()) return;
  table_.remove(found->second->view.place);
  std::erase(dirty_, found->second.get());
  nodes_.erase(found);
}

void ClusterView::set_pod(PodRequest pod) {
  if (pod.ended || pod.node.empty() || pod.containers.empty()) return remove_pod(pod.name_space, pod.name);
  std::string key = pod.key();
  auto& known = pods_[key];
  if (known == pod) return;
  if (!known.node.empty() && known.node != pod.node) {  // another Pod of that name
    const std::string old = known.node;
    pods_of_[old].erase(key);
    if (const auto at = nodes_.find(old); at != nodes_.end()) dirty(*at->second);
  }
  known = std::move(pod);
  pods_of_[known.node].insert(key);
  if (const auto at = nodes_.find(known.node); at != nodes_.end()) dirty(*at->second);
}

void ClusterView::remove_pod(std::string_view name_space, std::string_view name) {
  const std::string key = std::string(name_space).append("/").append(name);
  const auto found = pods_.find(key);
  if (found == pods_.end()) return;
  const std::string node = found->second.node;
  pods_.erase(found);
  if (const auto of = pods_of_.find(node); of != pods_of_.end()) {
    of->second.erase(key);
    if (of->second.empty()) pods_of_.erase(of);
  }
  if (const auto at = nodes_.find(node); at != nodes_.end()) dirty(*at->second);
}

const NodeView* ClusterView::find(std::string_view name) {
  const auto found = nodes_.find(name);
  if (found == nodes_.end()) return nullptr;
  settle();
  return &found->second->view;
}

const PodRequest* ClusterView::pod(const std::string& key) const {
  const auto found = pods_.find(key);
  return found == pods_.end() ? nullptr : &found->second;
}

NodeTable& ClusterView::table() {
  settle();
  return table_;
}

std::vector<std::string> ClusterView::node_names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : nodes_) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> ClusterView::pod_keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, pod] : pods_) keys.push_back(key);
  return keys;
}

void ClusterView::set_pods_complete() {
  if (std::exchange(pods_complete_, true)) return;
  for (const auto& [name, entry] : nodes_) dirty(*entry);
}

void ClusterView::settle() {
  for (Entry* entry : dirty_) settle(*entry);
  dirty_.clear();
}

// Those that were assumed before keep what they have, if nobody else was given it; then the new ones, in
// their order.
void ClusterView::assume(Entry& entry, const std::vector<const PodRequest*>& pods) {
  NodeView& view = entry.view;
  std::map<std::string, std::vector<PodHolding::Part>> kept;
  for (const auto* pod : pods) {
    const auto before = entry.assumed.find(pod->key());
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
    if (kept.contains(pod->key())) continue;
    std::vector<Shares> free = view.free;
    // What the node cannot give the kubelet will refuse: such a Pod takes nothing.
    const auto given = allocate(view, *pod, free);
    if (!given) continue;
    view.free = std::move(free);
    kept.emplace(pod->key(), parts_of(*given));
  }
  for (const auto* pod : pods) {
    const auto found = kept.find(pod->key());
    if (found != kept.end()) view.claims.push_back({found->first, found->second, true});
  }
  entry.assumed = std::move(kept);
}

void ClusterView::settle(Entry& entry) {
  entry.dirty = false;
  NodeView& view = entry.view;
  view.free.clear();
  view.held.clear();
  view.spoken_for.clear();
  view.claims.clear();
  for (const auto& resource : view.node.resources) {
    Shares free;
    for (const auto& unit : resource.units)
      free.push_back(static_cast<std::uint16_t>(unit.shares - unit.out));
    view.held.emplace_back(free.size());
    view.spoken_for.emplace_back(free.size());
    view.free.push_back(std::move(free));
  }
  std::set<std::string_view> seen;
  for (const auto& holder : view.node.holders) {
    seen.insert(holder.pod);
    // An object that still names a Pod that is gone, or went elsewhere, is the older word of the two.
    const auto pod = pods_.find(holder.pod);
    const bool here = pod != pods_.end() && pod->second.node == view.name;
    if (here || !pods_complete_) view.claims.push_back({holder.pod, holder.parts, false});
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
                    [](const auto* pod) { return std::tie(pod->scheduled, pod->name_space, pod->name); });
  assume(entry, assumed);
  for (const auto& claim : view.claims) {
    const auto pod = pods_.find(claim.pod);
    const std::uint64_t memory = pod == pods_.end() ? 0 : pod->second.wishes.memory_mib;
    for (const auto& part : claim.parts) {
      auto& held = view.held[part.resource][part.unit];
      held = static_cast<std::uint16_t>(std::min(kMaxHeld, held + part.shares));
      view.spoken_for[part.resource][part.unit] += memory * part.shares;
    }
  }
  view.free_total.clear();
  for (const auto& free : view.free) {
    view.free_total.push_back(std::accumulate(free.begin(), free.end(), 0U));
  }
  table_.update(view.place, state_of(view, entry.model, entry.links));
}

unsigned milli_of(const NodeView& view, std::size_t resource, std::size_t unit) {
  const auto& one = view.node.resources[resource].units[unit];
  if (!one.profile.empty()) {
    const auto whole = view.node.model_of(one).memory_mib;
    return whole == 0
               ? kWhole
               : static_cast<unsigned>(std::min<std::uint64_t>(kWhole, one.memory_mib * kWhole / whole));
  }
  unsigned parts = 0;  // resources that the GPU is in
  for (const auto& other : view.node.resources) {
    parts += static_cast<unsigned>(std::ranges::count_if(
        other.units, [&](const Unit& u) { return u.gpu == one.gpu && u.profile.empty(); }));
  }
  return kWhole / std::max(parts, 1U);
}

NodeState ClusterView::state_of(const NodeView& view, ModelId model,
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
      const unsigned more = milli_of(view, resource, unit) * view.free[resource][unit] / units[unit].shares;
      free = static_cast<std::uint16_t>(std::min(kWhole, free + more));
    }
  }
  for (std::size_t gpu = 0; gpu < state.gpus; ++gpu) {
    const auto& load = view.node.gpus[gpu].load;
    if (load.empty()) continue;
    if (const auto curve = decode_curve(load)) state.load[gpu] = *curve;
  }
  return state;
}

}  // namespace gpulet::scheduler
