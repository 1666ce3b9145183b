// Choosing shares of GPUs (replicas, MIG devices): by how many of each GPU's shares are taken already.
//
// As NVIDIA's plugin: one share at a time, from the GPU with the fewest shares allocated (distributed) or the
// most (packed); then the one picked from least in this request. Its further ties are random; ours go to the
// GPU with the best links to those picked, then to the lowest index. It counts per MIG device where MIG
// devices have replicas; we count per GPU, then per MIG device inside it, of which that at the lowest memory
// slice comes first: the half of the GPU with a slice that no instance can begin at fills last, so what stays
// whole is worth most when it is cut anew.
#pragma once

#include <string>

#include "placement/problem.h"

namespace gpulet::placement {

class SharedGpus {
 public:
  SharedGpus(const topology::Topology& topology, const std::vector<Device>& devices);

  // Ask::policy plays no part. Cost: O(available + size · GPUs).
  Answer choose(const Ask& ask, SharedPolicy policy) const;

  struct Use {
    std::size_t gpu = 0;     // index in the Topology
    std::size_t taken = 0;   // of this choice
    std::size_t total = 0;   // shares that the resource has on it
    std::size_t in_use = 0;  // before this choice
  };
  // By GPU, those that the choice has something of.
  std::vector<Use> uses(const Ask& ask, const std::vector<Position>& chosen) const;

 private:
  struct Gpu {
    std::size_t index;
    std::size_t total;
    std::vector<std::uint32_t> units;
  };
  // What has replicas of its own: the GPU itself, or each MIG device of it.
  struct Unit {
    std::uint32_t gpu;
    std::size_t total;
    unsigned memory_slice;
  };

  std::vector<Gpu> gpus_;
  std::vector<Unit> units_;
  std::vector<std::uint32_t> unit_of_;  // by position
  Problem links_;                       // between gpus_
};

}  // namespace gpulet::placement
