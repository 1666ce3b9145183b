#include "fraction/memory_audit.h"

namespace gpulet::fraction {

Bytes unlisted_memory(const GpuMemoryUse& gpu) {
  if (!gpu.used) return {};
  std::uint64_t listed = kDriverMemory.value;
  for (const auto& process : gpu.processes) {
    if (!process.memory) return {};
    listed += process.memory->value + kDriverMemoryOfProcess.value;
  }
  return Bytes{gpu.used->value > listed ? gpu.used->value - listed : 0};
}

std::vector<MemoryUse> audit_gpu_memory(const GpuMemoryUse& gpu, std::span<const MemoryHolder> holders) {
  std::vector<MemoryUse> uses;
  std::map<ContainerKey, std::size_t> by_container;
  for (const auto& holder : holders) {
    if (holder.limit == Bytes{}) continue;
    by_container[holder.container] = uses.size();
    uses.push_back({holder.container, holder.limit, {}, {}});
  }
  for (const auto& process : gpu.processes) {
    const auto found = process.container ? by_container.find(*process.container) : by_container.end();
    if (found == by_container.end()) continue;
    auto& use = uses[found->second];
    use.used.value += process.memory.value_or(Bytes{}).value;
    use.pids.push_back(process.pid);
  }
  const bool is_alone =
      holders.size() == 1 && uses.size() == 1 && uses.front().pids.size() == gpu.processes.size();
  if (is_alone) uses.front().used.value += unlisted_memory(gpu).value;
  return uses;
}

Excess ExcessTracker::observe(const ContainerKey& container, const DeviceUuid& gpu, bool is_exceeded) {
  const std::pair key(container, gpu);
  if (!is_exceeded) {
    exceeded_.erase(key);
    return Excess::kNone;
  }
  const unsigned times = ++exceeded_[key];
  return times == 1 ? Excess::kNew : times == 2 ? Excess::kConfirmed : Excess::kOngoing;
}

void ExcessTracker::retain_containers(const std::set<ContainerKey>& held) {
  std::erase_if(exceeded_, [&](const auto& entry) { return !held.contains(entry.first.first); });
}

}  // namespace gpulet::fraction
