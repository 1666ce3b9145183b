#include "extender/gpu_use.h"

#include <algorithm>

namespace gpulet::extender {

std::vector<GpuUse> gpu_uses(const scheduler::ClusterNode& node) {
  std::vector<GpuUse> uses(node.node.gpus.size());
  for (std::size_t resource = 0; resource < node.node.resources.size(); ++resource) {
    const auto& units = node.node.resources[resource].units;
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      auto& use = uses[units[unit].gpu];
      const unsigned held = node.held[resource][unit], shares = std::max(1U, units[unit].shares);
      use.held += held;
      use.shares += units[unit].shares;
      use.unavailable += units[unit].unavailable;
      use.milli += scheduler::unit_milli(node, resource, unit) * std::min(held, shares) / shares;
      use.has_mig = use.has_mig || !units[unit].profile.empty();
    }
  }
  return uses;
}

std::vector<GpuFault> gpu_faults(const scheduler::GpuNode& node) {
  std::vector<GpuFault> faults;
  for (std::size_t gpu = 0; gpu < node.gpus.size(); ++gpu) {
    if (!node.gpus[gpu].reason.empty()) faults.push_back({gpu, node.gpus[gpu].reason});
  }
  for (const auto& resource : node.resources) {
    for (const auto& unit : resource.units) {
      if (unit.unavailable == 0 || unit.unavailable_reason.empty() ||
          unit.unavailable_reason == node.gpus[unit.gpu].reason)
        continue;
      faults.push_back(
          {unit.gpu, (unit.profile.empty() ? "" : unit.profile + ": ") + unit.unavailable_reason});
    }
  }
  return faults;
}

bool is_cordoned(const scheduler::NodeGpu& gpu) { return gpu.reason.starts_with(kCordonedName); }

std::string_view shown_state(const scheduler::NodeGpu& gpu) {
  return is_cordoned(gpu) ? kCordonedName : enum_name(gpu.state);
}

}  // namespace gpulet::extender
