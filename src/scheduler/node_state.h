// What a policy sees of one node: what is free on it, its GPUs' model, links and load. Plain values, cheap to
// copy.
//
// Whoever makes one says what counts: the simulator counts CPU and memory, the extender leaves them to
// kube-scheduler (kUncounted), which has filtered by them already.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "scheduler/load_curve.h"
#include "scheduler/task.h"

namespace gpulet::scheduler {

// The most GPUs of one machine that NVIDIA has sold (HGX-2). Beyond that the first sixteen count.
inline constexpr std::size_t kMaxGpus = 16;
// GPUs of a node by number, a bit each.
using GpuSet = std::uint32_t;
// Free CPU or memory that somebody else counts: enough for any task.
inline constexpr std::int64_t kUncounted = std::numeric_limits<std::int64_t>::max() / 4;

struct NodeLinks;  // links.h

struct NodeState {
  std::int64_t cpu_milli = kUncounted;   // free
  std::int64_t memory_mib = kUncounted;  // free
  ModelId model = 0;
  std::uint8_t gpus = 0;  // how many of the arrays below count
  // Thousandths of each GPU that nobody holds. A GPU that must not be used (unhealthy, cordoned, held) has 0.
  std::array<std::uint16_t, kMaxGpus> free{};
  // What is expected of each GPU with all that runs on it now; all 0 where nothing is known.
  std::array<LoadCurve, kMaxGpus> load{};
  // How the GPUs are linked. One object for all nodes that are built alike: it is compared by address. Null:
  // unknown.
  std::shared_ptr<const NodeLinks> links;

  std::span<const std::uint16_t> shares() const { return {free.data(), gpus}; }
  unsigned free_milli() const;
  // GPUs with at least `milli` free.
  GpuSet with_free(unsigned milli) const;
  // Whether the task can run here now: CPU, memory, model, and enough GPUs with its share free.
  bool fits(const Task& task) const;
  // The same node with the task on `gpus`. Precondition: fits(task), and `gpus` are task.gpus of
  // with_free(gpu_milli). The load stays as it is: that is for who knows when a forecast has the task in it
  // (add_load).
  void take(const Task& task, GpuSet gpus);
  void add_load(GpuSet gpus, const LoadCurve& curve);
  bool has_load() const;
};

// Whether two nodes are of one kind: equal but for their load.
bool same_kind(const NodeState& a, const NodeState& b);

// What the task will do to its GPU: its own curve, or its share, flat.
LoadCurve expected_load(const Task& task);

}  // namespace gpulet::scheduler
