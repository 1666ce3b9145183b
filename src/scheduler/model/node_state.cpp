#include "scheduler/model/node_state.h"

#include <algorithm>

#include "base/text.h"

namespace gpulet::scheduler {

Result<ModelId> Models::model_id(std::string_view name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found == names_.end()) {
    if (names_.size() == kMaxModels) {
      return fail(Code::kInvalidArgument, "model '" + std::string(name) + "' exceeds the limit of " +
                                              std::to_string(kMaxModels) + " models");
    }
    names_.emplace_back(name);
    return static_cast<ModelId>(names_.size() - 1);
  }
  return static_cast<ModelId>(found - names_.begin());
}

Result<ModelSet> Models::parse_model_set(std::string_view names) {
  ModelSet models;
  for (const std::string& part : text::split(names, '|')) {
    const std::string_view name = text::trim(part);
    if (name.empty()) {
      return fail(
          Code::kInvalidArgument,
          "'" + std::string(names) + "' contains an empty model; write A|B, or nothing for any model");
    }
    GPULET_TRY_ASSIGN(const ModelId model, model_id(name));
    models.bits |= std::uint64_t{1} << model;
  }
  return models;
}

Workload Workload::from_tasks(std::span<const Task> tasks) {
  if (tasks.empty()) return typical();
  Workload mix;
  for (const Task& task : tasks) {
    auto found = std::ranges::find_if(mix.classes_,
                                      [&](const TaskClass& known) { return known.task.is_same_class(task); });
    if (found == mix.classes_.end()) {
      mix.classes_.push_back({task, 0});
      mix.classes_.back().task.load.reset();
      found = mix.classes_.end() - 1;
    }
    found->weight += 1.0 / static_cast<double>(tasks.size());
  }
  return mix;
}

Workload Workload::typical() {
  struct Part {
    std::uint16_t gpus, milli;
    double weight;
  };
  constexpr Part kParts[] = {{1, 100, 0.05},  {1, 250, 0.10},  {1, 500, 0.15}, {1, 1000, 0.45},
                             {2, 1000, 0.10}, {4, 1000, 0.08}, {8, 1000, 0.07}};
  Workload mix;
  for (const Part& part : kParts) {
    TaskClass entry;
    entry.task.gpus = part.gpus;
    entry.task.gpu_milli = part.milli;
    entry.weight = part.weight;
    mix.classes_.push_back(entry);
  }
  return mix;
}

unsigned NodeState::free_milli() const {
  unsigned sum = 0;
  for (const std::uint16_t share : free_shares()) sum += share;
  return sum;
}

GpuSet NodeState::gpus_with_free(unsigned milli) const {
  GpuSet set = 0;
  for (unsigned gpu = 0; gpu < gpus; ++gpu) set |= static_cast<GpuSet>(free[gpu] >= milli) << gpu;
  return set;
}

bool NodeState::fits(const Task& task) const {
  if (task.cpu_milli > cpu_milli || task.memory_mib > memory_mib) return false;
  if (task.gpus == 0) return true;
  return task.models.accepts(model) && std::popcount(gpus_with_free(task.gpu_milli)) >= task.gpus;
}

void NodeState::allocate_task(const Task& task, GpuSet taken) {
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
         a.gpus == b.gpus && a.links == b.links && std::ranges::equal(a.free_shares(), b.free_shares());
}

LoadCurve expected_load(const Task& task) {
  if (task.load) return *task.load;
  const unsigned percent = task.gpu_milli / 10u;
  return flat_curve(percent, percent);
}

}  // namespace gpulet::scheduler
