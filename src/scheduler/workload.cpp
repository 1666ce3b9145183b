#include "scheduler/workload.h"

#include <algorithm>

namespace gpulet::scheduler {

Workload Workload::of(std::span<const Task> tasks) {
  if (tasks.empty()) return typical();
  Workload mix;
  for (const Task& task : tasks) {
    auto found = std::ranges::find_if(mix.classes_,
                                      [&](const TaskClass& known) { return known.task.same_class(task); });
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

}  // namespace gpulet::scheduler
