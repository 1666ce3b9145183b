// How much of a node's free GPU share the expected tasks cannot use.
//
// Fragmentation is the measure of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
// Fragmentation Gradient Descent" (USENIX ATC 2023). It sees only GPUs that one task cannot use. Free GPUs
// that no number of such tasks could fill, because CPU or memory run out first or the GPUs do not come in
// sets, count as unhosted.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduler/model/node_state.h"

namespace gpulet::scheduler {

// In thousandths of a GPU, the weighted mean over the task classes of a mix.
struct Fragmentation {
  // Free share that a task of the class cannot use: GPUs with less than its share free; all of it if the
  // task does not fit the node. A task without GPUs wastes nothing where it fits.
  double fragmented = 0;
  // Free share beyond what tasks of this class alone could fill, in whole tasks for GPUs and in fractions
  // for CPU and memory. Classes without GPUs are left out.
  double unhosted = 0;
};

// Estimates for one mix, cached by kind of node (GPUs in any order). One thread.
class FragmentationEstimator {
 public:
  explicit FragmentationEstimator(const Workload& workload);

  // Ignores load and links. Cost: ~50 ns if cached; else O(classes), ~1 µs for a hundred.
  Fragmentation estimate(const NodeState& node);
  // The same without the cache.
  Fragmentation estimate_uncached(const NodeState& node) const;

 private:
  // Cache limit, ~150 bytes per entry; beyond it the cache is cleared.
  static constexpr std::size_t kMaxCached = 100'000;

  struct Class {
    Task task;
    double weight = 0;
    std::uint32_t share = 0;  // index in shares_
  };
  // A node's kind with its GPUs sorted by free share.
  struct Key {
    std::int64_t cpu_milli = 0;
    std::int64_t memory_mib = 0;
    std::uint32_t model = 0;
    std::uint32_t gpus = 0;
    std::array<std::uint16_t, kMaxGpus> free{};
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  static Key make_key(const NodeState& node);
  Fragmentation estimate_uncached(const Key& key) const;

  std::vector<Class> classes_;
  std::vector<std::uint16_t> shares_;  // the distinct shares that classes request, ascending
  std::unordered_map<Key, Fragmentation, KeyHash> cache_;
};

}  // namespace gpulet::scheduler
