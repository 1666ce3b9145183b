// What a node's free GPU share is worth to the tasks that are expected: how much of it each could not use.
//
// Fragmentation is the measure of "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with
// Fragmentation Gradient Descent" (USENIX ATC 2023). It sees only GPUs that one task cannot use; free GPUs
// that no number of such tasks could fill, because the processors or the memory run out first or the GPUs do
// not come in sets, are counted as unhosted.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "scheduler/node_state.h"
#include "scheduler/workload.h"

namespace gpulet::scheduler {

// In thousandths of a GPU, the mean over the classes of a mix by their weights.
struct Waste {
  // Free share that a task of the class cannot use: of GPUs with less than its share free; all of it where
  // the task does not fit the node. A task without GPUs wastes nothing where it fits.
  double fragmentation = 0;
  // Free share beyond what tasks of this class alone could fill, by whole tasks for GPUs and by fractions for
  // CPU and memory. Classes without GPUs are left out.
  double unhosted = 0;
};

// Answers for one mix, remembered by kind of node (GPUs in any order). One thread.
class WasteMeter {
 public:
  explicit WasteMeter(const Workload& workload);

  // Load and links play no part. Cost: ~50 ns when remembered; else O(classes), ~1 µs for a hundred.
  Waste of(const NodeState& node);
  // The same, not remembered.
  Waste measure(const NodeState& node) const;

 private:
  // What is remembered at most; beyond, it begins anew. ~150 bytes each.
  static constexpr std::size_t kMaxRemembered = 100'000;

  struct Class {
    Task task;
    double weight = 0;
    std::uint32_t share = 0;  // index in shares_
  };
  // A node's kind with its GPUs in order of free share.
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
  static Key key_of(const NodeState& node);
  Waste measure(const Key& key) const;

  std::vector<Class> classes_;
  std::vector<std::uint16_t> shares_;  // the distinct shares that classes ask for, ascending
  std::unordered_map<Key, Waste, KeyHash> known_;
};

}  // namespace gpulet::scheduler
