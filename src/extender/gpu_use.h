// How much of each GPU of a node is held, and what state people see: one rule for the cluster page and
// `kubectl gpulet`. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "scheduler/core/cluster_state.h"

namespace gpulet::extender {

// Of one GPU, over all units that resources offer of it.
struct GpuUse {
  unsigned milli = 0;                              // held thousandths, may exceed 1000
  unsigned held = 0, shares = 0, unavailable = 0;  // shares: held; in all; not offered now
  bool has_mig = false;                            // at least one unit is a MIG device
};

// By GPU.
std::vector<GpuUse> gpu_uses(const scheduler::ClusterNode& node);

struct GpuFault {
  std::size_t gpu = 0;  // index
  std::string reason;   // of a MIG device: "3g.40gb: XID 48: …"
};

// The reasons of GPUs and of MIG devices that are not offered though their GPU is.
std::vector<GpuFault> gpu_faults(const scheduler::GpuNode& node);

// The state that people see of a GPU that an operator has cordoned.
inline constexpr std::string_view kCordonedName = "cordoned";
// By the reason, which begins with the word (health/policy).
bool is_cordoned(const scheduler::NodeGpu& gpu);
// "healthy", …, or kCordonedName.
std::string_view shown_state(const scheduler::NodeGpu& gpu);

}  // namespace gpulet::extender
