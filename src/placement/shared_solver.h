// Chooses shares of GPUs (replicas, MIG devices) by how many shares of each GPU are allocated, and explains
// choices in one line.
//
// As in NVIDIA's plugin, one share at a time comes from the GPU with the fewest shares allocated
// (distributed) or the most (packed), then from the one least picked in this request. NVIDIA's further
// ties are random; here the least load decides, then the best links to the picked GPUs, then the lowest
// index. A GPU whose free memory is below the usual of a share, for this and each share picked before,
// comes after all that have it. NVIDIA counts per MIG device if MIG devices have replicas; gpulet counts
// per GPU, then per MIG device in it, the lowest memory slice first. The upper half of the GPU, where some
// slices cannot start an instance, thus fills last, which leaves the most useful room for a new layout.
#pragma once

#include <string>

#include "placement/bounded_solver.h"

namespace gpulet::placement {

class SharedSolver {
 public:
  SharedSolver(const topology::Topology& topology, const std::vector<Device>& devices);

  // Request::policy is ignored. Cost: O(available + size · GPUs).
  Solution choose_shares(const Request& ask, SharedPolicy policy, SharesOn where = SharesOn::kAnyGpu) const;

  struct Use {
    std::size_t gpu = 0;     // index in the Topology
    std::size_t taken = 0;   // of this choice
    std::size_t total = 0;   // shares of the resource on it
    std::size_t in_use = 0;  // before this choice
    GpuLoad load;
    bool lacks_memory = false;  // for the shares of this choice
  };
  // The GPUs of the choice, by GPU.
  std::vector<Use> uses(const Request& ask, const std::vector<Position>& chosen) const;

 private:
  struct Gpu {
    std::size_t index;
    std::size_t total;
    unsigned share_percent;  // Device::memory_percent
    std::vector<std::uint32_t> units;
  };
  // Whether the GPU's free memory is below what that many more shares usually have.
  static bool lacks_memory(const Gpu& gpu, const GpuLoad& load, std::size_t shares);
  // A carrier of replicas: the GPU, or one of its MIG devices.
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

//

// `gpus` are topology indices. "GPUs 0 and 3, all linked by NV2, on NUMA node 0"
std::string describe_set(const topology::Topology& topology, const std::vector<std::size_t>& gpus);

// "…; in the best split of the 8 available into sets of 2, total 1640"
std::string explain_choice(const topology::Topology& topology, const std::vector<std::size_t>& gpus,
                           const Request& ask, const Solution& answer, Method method);

// "2 shares of GPU 0 (1 of 4 in use before; 40 % busy, 25 % of its memory in use) and 1 share of GPU 3 (0 of
// 4 in use before); distributed: the least used first"
std::string explain_shared(const std::vector<SharedSolver::Use>& uses, SharedPolicy policy);

}  // namespace gpulet::placement
