#include "scheduler/node_state.h"

#include <algorithm>

namespace gpulet::scheduler {

unsigned NodeState::free_milli() const {
  unsigned sum = 0;
  for (const std::uint16_t share : shares()) sum += share;
  return sum;
}

GpuSet NodeState::with_free(unsigned milli) const {
  GpuSet set = 0;
  for (unsigned gpu = 0; gpu < gpus; ++gpu) set |= static_cast<GpuSet>(free[gpu] >= milli) << gpu;
  return set;
}

bool NodeState::fits(const Task& task) const {
  if (task.cpu_milli > cpu_milli || task.memory_mib > memory_mib) return false;
  if (task.gpus == 0) return true;
  return task.models.accepts(model) && std::popcount(with_free(task.gpu_milli)) >= task.gpus;
}

void NodeState::take(const Task& task, GpuSet taken) {
  if (cpu_milli != kUncounted) cpu_milli -= task.cpu_milli;
  if (memory_mib != kUncounted) memory_mib -= task.memory_mib;
  for (unsigned gpu = 0; gpu < gpus; ++gpu) {
    if ((taken >> gpu & 1) != 0) free[gpu] = static_cast<std::uint16_t>(free[gpu] - task.gpu_milli);
  }
}

void NodeState::add_load(GpuSet set, const LoadCurve& curve) {
  for (unsigned gpu = 0; gpu < gpus; ++gpu) {
    if ((set >> gpu & 1) != 0) load[gpu] = load[gpu] + curve;
  }
}

bool NodeState::has_load() const {
  return std::any_of(load.begin(), load.begin() + gpus,
                     [](const LoadCurve& curve) { return curve != LoadCurve{}; });
}

bool same_kind(const NodeState& a, const NodeState& b) {
  return a.cpu_milli == b.cpu_milli && a.memory_mib == b.memory_mib && a.model == b.model &&
         a.gpus == b.gpus && a.links == b.links && std::ranges::equal(a.shares(), b.shares());
}

LoadCurve expected_load(const Task& task) {
  if (task.load) return *task.load;
  const unsigned percent = task.gpu_milli / 10u;
  return flat_curve(percent, percent);
}

}  // namespace gpulet::scheduler
