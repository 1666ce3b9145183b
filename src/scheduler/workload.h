// The target mix: which tasks a cluster is expected to get, and how often each. Fragmentation is measured
// against it.
#pragma once

#include <span>
#include <vector>

#include "scheduler/task.h"

namespace gpulet::scheduler {

struct TaskClass {
  Task task;
  double weight = 0;  // share of all tasks; the weights of a mix sum to 1
};

class Workload {
 public:
  // Equal tasks (same_class) become one class, weighted by their number; classes in order of appearance.
  // GPU-less tasks count too. An empty list gives `typical`.
  static Workload of(std::span<const Task> tasks);
  // For a cluster that has seen nothing yet: shares, whole GPUs, and sets of 2, 4 and 8, in the proportions
  // of published traces; no CPU or memory.
  static Workload typical();

  const std::vector<TaskClass>& classes() const { return classes_; }

 private:
  std::vector<TaskClass> classes_;
};

}  // namespace gpulet::scheduler
