#include "scheduler/core/fragmentation.h"

#include <algorithm>
#include <functional>

#include "scheduler/model/node_state.h"

namespace gpulet::scheduler {
namespace {

// What a node has for tasks with one share size.
struct Supply {
  unsigned too_small = 0;  // free share of the GPUs that have less
  unsigned gpus = 0;       // GPUs that have enough
  unsigned times = 0;      // how many such shares they have together
};

// How many tasks fit into `free`, as a fraction; `asked` 0: no limit.
double task_capacity(std::int64_t free, std::int64_t requested) {
  if (requested == 0 || free == kUncounted) return static_cast<double>(kUncounted);
  return static_cast<double>(free) / static_cast<double>(requested);
}

}  // namespace

FragmentationEstimator::FragmentationEstimator(const Workload& workload) {
  for (const TaskClass& entry : workload.classes()) {
    if (entry.task.gpus > 0) shares_.push_back(entry.task.gpu_milli);
  }
  std::ranges::sort(shares_);
  shares_.erase(std::unique(shares_.begin(), shares_.end()), shares_.end());
  for (const TaskClass& entry : workload.classes()) {
    const auto share = std::ranges::lower_bound(shares_, entry.task.gpu_milli) - shares_.begin();
    classes_.push_back({entry.task, entry.weight, static_cast<std::uint32_t>(share)});
  }
}

FragmentationEstimator::Key FragmentationEstimator::make_key(const NodeState& node) {
  Key key;
  key.cpu_milli = node.cpu_milli;
  key.memory_mib = node.memory_mib;
  key.model = node.model;
  key.gpus = node.gpus;
  key.free = node.free;
  std::sort(key.free.begin(), key.free.begin() + key.gpus);
  return key;
}

std::size_t FragmentationEstimator::KeyHash::operator()(const Key& key) const {
  StateHasher hash;
  hash.add_value(static_cast<std::uint64_t>(key.cpu_milli));
  hash.add_value(static_cast<std::uint64_t>(key.memory_mib));
  hash.add_value(std::uint64_t{key.model} << 32 | key.gpus);
  hash.add_shares({key.free.data(), key.gpus});
  return hash.value();
}

Fragmentation FragmentationEstimator::estimate(const NodeState& node) {
  const Key key = make_key(node);
  const auto found = cache_.find(key);
  if (found != cache_.end()) return found->second;
  if (cache_.size() == kMaxCached) cache_.clear();
  return cache_.emplace(key, estimate_uncached(key)).first->second;
}

Fragmentation FragmentationEstimator::estimate_uncached(const NodeState& node) const {
  return estimate_uncached(make_key(node));
}

Fragmentation FragmentationEstimator::estimate_uncached(const Key& key) const {
  // Thousandths allow at most a thousand distinct shares; the key's GPUs are sorted, so one pass serves them
  // all.
  thread_local std::vector<Supply> supplies;
  supplies.assign(shares_.size(), {});
  unsigned total = 0;
  for (std::size_t gpu = 0; gpu < key.gpus; ++gpu) total += key.free[gpu];
  for (std::size_t at = 0; at < shares_.size(); ++at) {
    for (std::size_t gpu = 0; gpu < key.gpus; ++gpu) {
      const unsigned free = key.free[gpu];
      if (free < shares_[at]) {
        supplies[at].too_small += free;
      } else {
        ++supplies[at].gpus;
        supplies[at].times += free / shares_[at];
      }
    }
  }
  Fragmentation waste;
  for (const Class& entry : classes_) {
    const Task& task = entry.task;
    const bool room_here = task.cpu_milli <= key.cpu_milli && task.memory_mib <= key.memory_mib;
    if (task.gpus == 0) {
      if (!room_here) waste.fragmented += entry.weight * total;
      continue;
    }
    const Supply& supply = supplies[entry.share];
    if (!room_here || !task.models.accepts(static_cast<ModelId>(key.model)) || supply.gpus < task.gpus) {
      waste.fragmented += entry.weight * total;
      waste.unhosted += entry.weight * total;
      continue;
    }
    waste.fragmented += entry.weight * supply.too_small;
    // Only whole GPUs of one task come from different GPUs.
    const unsigned by_gpus = supply.times / task.gpus;
    const double times = std::min({static_cast<double>(by_gpus), task_capacity(key.cpu_milli, task.cpu_milli),
                                   task_capacity(key.memory_mib, task.memory_mib)});
    waste.unhosted += entry.weight * std::max(0.0, total - times * static_cast<double>(task.total_milli()));
  }
  return waste;
}

}  // namespace gpulet::scheduler
