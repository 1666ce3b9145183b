#include "scheduler/waste.h"

#include <algorithm>
#include <functional>

#include "scheduler/hash.h"

namespace gpulet::scheduler {
namespace {

// What a node has for tasks that ask for one share of each GPU.
struct Supply {
  unsigned too_small = 0;  // free share of the GPUs that have less
  unsigned gpus = 0;       // GPUs that have it
  unsigned times = 0;      // how often they have it together
};

// As many tasks as `free` has room for, in fractions; `asked` 0: no limit.
double room(std::int64_t free, std::int64_t asked) {
  if (asked == 0 || free == kUncounted) return static_cast<double>(kUncounted);
  return static_cast<double>(free) / static_cast<double>(asked);
}

}  // namespace

WasteMeter::WasteMeter(const Workload& workload) {
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

WasteMeter::Key WasteMeter::key_of(const NodeState& node) {
  Key key;
  key.cpu_milli = node.cpu_milli;
  key.memory_mib = node.memory_mib;
  key.model = node.model;
  key.gpus = node.gpus;
  key.free = node.free;
  std::sort(key.free.begin(), key.free.begin() + key.gpus);
  return key;
}

std::size_t WasteMeter::KeyHash::operator()(const Key& key) const {
  Hash hash;
  hash.add(static_cast<std::uint64_t>(key.cpu_milli));
  hash.add(static_cast<std::uint64_t>(key.memory_mib));
  hash.add(std::uint64_t{key.model} << 32 | key.gpus);
  hash.add_shares({key.free.data(), key.gpus});
  return hash.value();
}

Waste WasteMeter::of(const NodeState& node) {
  const Key key = key_of(node);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  if (known_.size() == kMaxRemembered) known_.clear();
  return known_.emplace(key, measure(key)).first->second;
}

Waste WasteMeter::measure(const NodeState& node) const { return measure(key_of(node)); }

Waste WasteMeter::measure(const Key& key) const {
  // Thousandths leave at most a thousand different shares; the key's GPUs are in order, so one pass serves
  // them all.
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
  Waste waste;
  for (const Class& entry : classes_) {
    const Task& task = entry.task;
    const bool room_here = task.cpu_milli <= key.cpu_milli && task.memory_mib <= key.memory_mib;
    if (task.gpus == 0) {
      if (!room_here) waste.fragmentation += entry.weight * total;
      continue;
    }
    const Supply& supply = supplies[entry.share];
    if (!room_here || !task.models.accepts(static_cast<ModelId>(key.model)) || supply.gpus < task.gpus) {
      waste.fragmentation += entry.weight * total;
      waste.unhosted += entry.weight * total;
      continue;
    }
    waste.fragmentation += entry.weight * supply.too_small;
    // A task takes each share from a GPU of its own only when it asks for whole ones.
    const unsigned by_gpus = supply.times / task.gpus;
    const double times = std::min({static_cast<double>(by_gpus), room(key.cpu_milli, task.cpu_milli),
                                   room(key.memory_mib, task.memory_mib)});
    waste.unhosted += entry.weight * std::max(0.0, total - times * static_cast<double>(task.total_milli()));
  }
  return waste;
}

}  // namespace gpulet::scheduler
