#include "scheduler/device_pool.h"

#include <algorithm>
#include <numeric>

#include "scheduler/link_matrix.h"

namespace gpulet::scheduler {
namespace {

void append_number(std::string& text, std::size_t number) { text.append(std::to_string(number)).append(" "); }

void put_key(const Shares& free, const Shares& required, unsigned count, std::string& key) {
  key.assign(reinterpret_cast<const char*>(free.data()), free.size() * sizeof(Shares::value_type));
  key.append(reinterpret_cast<const char*>(required.data()), required.size() * sizeof(Shares::value_type));
  key.append(reinterpret_cast<const char*>(&count), sizeof count);
}

}  // namespace

std::string build_of(const GpuNode& node) {
  const auto links = link_matrix(node.pairs, node.gpus.size());
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
    first_.push_back(ids_.size());
    for (unsigned share = 0; share < one.shares; ++share) {
      DeviceId id(std::to_string(ids_.size()));
      position_of_.emplace(id.str(), ids_.size());
      unit_of_.push_back(unit);
      devices.push_back({.id = id,
                         .gpu = one.gpu,
                         .shared = resource.sharing != Sharing::kNone || !one.profile.empty(),
                         .memory_slice = one.slice});
      ids_.push_back(std::move(id));
    }
  }
  chooser_ = placement::Chooser::make(topology_of(node), std::move(devices), node.rules);
}

void DevicePool::add_ids(const Shares& shares, std::vector<DeviceId>& ids) const {
  for (std::size_t unit = 0; unit < first_.size(); ++unit) {
    for (std::size_t share = 0; share < shares[unit]; ++share) ids.push_back(ids_[first_[unit] + share]);
  }
}

const Shares& DevicePool::choose(const Shares& free, const Shares& required, unsigned count) {
  put_key(free, required, count, key_);
  if (const auto known = remembered_.find(key_); known != remembered_.end()) return known->second;
  if (remembered_.size() >= kMaxRemembered) remembered_.clear();
  auto& answer = remembered_[key_];
  const auto total = std::accumulate(free.begin(), free.end(), std::size_t{0});
  if (count == 0 || total < count) return answer;
  std::vector<DeviceId> available, must;
  add_ids(free, available);
  // What an init container left counts only as far as this one needs it.
  Shares taken = required;
  taken.resize(free.size());
  std::size_t left = count;
  for (std::size_t unit = 0; unit < taken.size(); ++unit) {
    taken[unit] = static_cast<std::uint16_t>(std::min<std::size_t>({taken[unit], free[unit], left}));
    left -= taken[unit];
  }
  add_ids(taken, must);
  const auto choice = chooser_->choose(available, must, count);
  if (!choice) return answer;
  answer.resize(free.size());
  for (const auto& id : choice->devices) ++answer[unit_of_[position_of_.at(id.str())]];
  return answer;
}

std::shared_ptr<DevicePool> DevicePools::pool_of(const GpuNode& node, const NodeResource& resource) {
  std::string key = build_of(node);
  append_number(key, static_cast<std::size_t>(node.rules.policy));
  append_number(key, static_cast<std::size_t>(node.rules.shared));
  append_number(key, static_cast<std::size_t>(resource.sharing != Sharing::kNone));
  for (const auto& unit : resource.units) {
    append_number(key, unit.gpu);
    append_number(key, unit.slice);
    append_number(key, unit.shares);
    append_number(key, unit.profile.empty() ? 0 : 1);
  }
  auto& kept = pools_[key];
  auto pool = kept.lock();
  if (pool) return pool;
  pool = std::make_shared<DevicePool>(node, resource);
  kept = pool;
  std::erase_if(pools_, [](const auto& entry) { return entry.second.expired(); });
  return pool;
}

}  // namespace gpulet::scheduler
