#include "scheduler/core/device_pool.h"

#include <algorithm>
#include <numeric>

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
  auto rules = node.rules;
  rules.shares_on = resource.shares_on;
  chooser_ = placement::Chooser::build_chooser(gpu_node_topology(node), std::move(devices), rules);
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
  append_number(key, static_cast<std::size_t>(resource.shares_on));
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

unsigned unit_share_percent(const GpuNode& node, const NodeResource& resource, const ResourceUnit& unit) {
  if (resource.sharing == Sharing::kNone || !unit.profile.empty()) return 0;
  const auto whole = node.unit_memory_mib(unit);
  if (unit.share_mib == 0 || whole == 0) return placement::equal_share_percent(unit.shares);
  return static_cast<unsigned>(std::min<std::uint64_t>((unit.share_mib * 100 + whole / 2) / whole, 100));
}

}  // namespace gpulet::scheduler
