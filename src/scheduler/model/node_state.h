// Tasks, the mix of tasks that a cluster expects, and the state of a node: the plain values that policies
// see.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "scheduler/load/forecast.h"

namespace gpulet::scheduler {

// A fast in-memory hash for tables with thousands of look-ups per decision.

// Folds 64 bits at a time: multiply by an odd constant, mix the high half into the low. Not for hostile
// keys.
class StateHasher {
 public:
  void add_value(std::uint64_t value) {
    state_ = (state_ ^ value) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 32;
  }
  void add_shares(std::span<const std::uint16_t> shares) {
    while (shares.size() >= 4) {
      std::uint64_t word = 0;
      std::memcpy(&word, shares.data(), sizeof word);
      add_value(word);
      shares = shares.subspan(4);
    }
    for (const std::uint16_t share : shares) add_value(share);
  }
  std::size_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x243F6A8885A308D3u;
};

// A task (a Pod) with its GPU request and the models it accepts, the mix of tasks expected by a cluster, and
// the state of a node. Plain values.

// A whole GPU, in thousandths.
inline constexpr unsigned kWhole = 1000;

// A GPU model as a number below 64, assigned by Models.
using ModelId = std::uint8_t;
inline constexpr std::size_t kMaxModels = 64;

// The models that a task accepts, one bit each; empty: any.
struct ModelSet {
  std::uint64_t bits = 0;
  bool accepts(ModelId model) const { return bits == 0 || (bits >> model & 1) != 0; }
  friend bool operator==(const ModelSet&, const ModelSet&) = default;
};

// Numbers GPU models in order of appearance.
class Models {
 public:
  // Errors: kInvalidArgument for the 65th name, with the name.
  Result<ModelId> model_id(std::string_view name);
  // "A|B" → both; "" → any. Errors: as model_id; kInvalidArgument for an empty name between bars.
  Result<ModelSet> parse_model_set(std::string_view names);
  const std::vector<std::string>& model_names() const { return names_; }

 private:
  std::vector<std::string> names_;
};

struct Task {
  std::int64_t cpu_milli = 0;   // 0 if CPU is not counted
  std::int64_t memory_mib = 0;  // host memory; 0 if not counted
  std::uint16_t gpus = 0;       // 0: none
  std::uint16_t gpu_milli = 0;  // per GPU, 1 to 1000; below 1000 it shares
  ModelSet models;
  // Expected load, if known (a service that ran before). Unknown: its share, flat.
  std::optional<LoadCurve> load;

  bool is_shared() const { return gpus == 1 && gpu_milli < kWhole; }
  std::int64_t total_milli() const { return std::int64_t{gpus} * gpu_milli; }
  // Equal but for the load: tasks of one class.
  bool is_same_class(const Task& other) const {
    return cpu_milli == other.cpu_milli && memory_mib == other.memory_mib && gpus == other.gpus &&
           gpu_milli == other.gpu_milli && models == other.models;
  }
};

// The target mix: the tasks that a cluster is expected to get, and how often. Fragmentation is measured
// against it.

struct TaskClass {
  Task task;
  double weight = 0;  // share of all tasks; weights sum to 1
};

class Workload {
 public:
  // Equal tasks (is_same_class) become one class, weighted by their number, in order of appearance. Tasks
  // without GPUs count too. An empty list gives `typical`.
  static Workload from_tasks(std::span<const Task> tasks);
  // For a cluster without history: shares, whole GPUs, and sets of 2, 4 and 8, in the proportions of
  // published traces; no CPU or memory.
  static Workload typical();

  const std::vector<TaskClass>& classes() const { return classes_; }

 private:
  std::vector<TaskClass> classes_;
};

// What a policy sees of one node: free capacity, GPU model, links and load. Plain values, cheap to copy.
//
// The creator decides what counts: the simulator counts CPU and memory; the extender leaves them to
// kube-scheduler (kUncounted), which has filtered by them already.

// The largest NVIDIA machine (HGX-2) has 16 GPUs; further ones are ignored.
inline constexpr std::size_t kMaxGpus = 16;
// GPUs of a node, one bit each.
using GpuSet = std::uint32_t;
// Free CPU or memory that someone else counts: enough for any task.
inline constexpr std::int64_t kUncounted = std::numeric_limits<std::int64_t>::max() / 4;

struct NodeLinks;  // links.h

struct NodeState {
  std::int64_t cpu_milli = kUncounted;   // free
  std::int64_t memory_mib = kUncounted;  // free
  ModelId model = 0;
  std::uint8_t gpus = 0;  // valid entries of the arrays below
  // Unallocated thousandths of each GPU. A GPU that must not be used (unhealthy, cordoned, held) has 0.
  std::array<std::uint16_t, kMaxGpus> free{};
  // Expected load of each GPU with all its current tasks; 0 if unknown.
  std::array<LoadCurve, kMaxGpus> load{};
  // GPU links, one object per topology, compared by address. Null: unknown.
  std::shared_ptr<const NodeLinks> links;

  std::span<const std::uint16_t> free_shares() const { return {free.data(), gpus}; }
  unsigned free_milli() const;
  // GPUs with at least `milli` free.
  GpuSet gpus_with_free(unsigned milli) const;
  // Whether the task can run here now: CPU, memory, model, and enough GPUs with its share free.
  bool fits(const Task& task) const;
  // Allocates the task on `gpus`. Precondition: fits(task), and `gpus` are task.gpus of
  // gpus_with_free(gpu_milli). Does not change the load; see add_load.
  void allocate_task(const Task& task, GpuSet gpus);
  void add_load(GpuSet gpus, const LoadCurve& curve);
  bool has_load() const;
};

// Whether two nodes are equal but for their load.
bool same_kind(const NodeState& a, const NodeState& b);

// The load that a task adds to its GPU: its own curve, or its share, flat.
LoadCurve expected_load(const Task& task);

}  // namespace gpulet::scheduler
