#include "scheduler/policy.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace gpulet::scheduler {
namespace {

// Trouble by utilisation in percent: one at 100, an eighth at 60, eight at 168. Steep enough that two GPUs at
// 60 are better than one at 100 and one at 20, and that the peaks of different hours are worth keeping apart.
constexpr double kSteepness = 4;
// What a percent of memory beyond the GPU's is worth: nobody runs slower there, somebody is killed.
constexpr double kMemoryShortage = 0.1;
// How much a machine that is busy all over counts against one that is idle, where the GPU itself is free.
constexpr double kMachine = 0.25;

const std::array<double, 256>& trouble() {
  static const std::array<double, 256> table = [] {
    std::array<double, 256> made{};
    for (std::size_t percent = 0; percent < made.size(); ++percent) {
      made[percent] = std::pow(static_cast<double>(percent) / 100, kSteepness);
    }
    return made;
  }();
  return table;
}

double shortage(unsigned memory_percent) {
  return memory_percent <= 100 ? 0 : kMemoryShortage * (memory_percent - 100);
}

// The `take` lowest of `gpus`.
GpuSet lowest(GpuSet gpus, unsigned take) {
  GpuSet set = 0;
  for (; take > 0 && gpus != 0; --take) {
    set |= gpus & -gpus;
    gpus &= gpus - 1;
  }
  return set;
}

// The `take` of `gpus` that cost least, lower ones first, and what they cost on the mean.
struct Coolest {
  GpuSet gpus = 0;
  double cost = 0;
};
Coolest coolest(const NodeState& node, const TaskLoad& load, const Option& option) {
  struct Gpu {
    double cost = 0;
    unsigned number = 0;
  };
  std::array<Gpu, kMaxGpus> gpus;
  std::size_t count = 0;
  bool alike = true;
  for (GpuSet left = option.gpus; left != 0; left &= left - 1) {
    const auto number = static_cast<unsigned>(std::countr_zero(left));
    const bool idle = node.load[number] == LoadCurve{};
    alike = alike && idle;
    gpus[count++] = {idle ? load.on_idle : load_cost(node, load.curve, number), number};
  }
  if (alike) return {lowest(option.gpus, option.take), load.on_idle};
  Coolest best;
  const std::size_t take = std::min<std::size_t>(option.take, count);
  const auto cooler = [](const Gpu& a, const Gpu& b) {
    return a.cost < b.cost || (a.cost <= b.cost && a.number < b.number);
  };
  std::partial_sort(gpus.begin(), gpus.begin() + take, gpus.begin() + count, cooler);
  for (std::size_t at = 0; at < take; ++at) {
    best.gpus |= GpuSet{1} << gpus[at].number;
    best.cost += gpus[at].cost / static_cast<double>(take);
  }
  return best;
}

}  // namespace

double load_cost(const NodeState& node, const LoadCurve& task_load, unsigned gpu) {
  const std::array<double, 256>& table = trouble();
  const LoadCurve& now = node.load[gpu];
  double cost = 0;
  for (std::size_t part = 0; part < kDayParts; ++part) {
    const unsigned before = now.busy[part];
    cost += table[std::min(before + task_load.busy[part], 255u)] - table[before];
  }
  return cost / kDayParts + shortage(unsigned{now.memory} + task_load.memory) - shortage(now.memory);
}

double machine_cost(const NodeState& node) {
  unsigned sum = 0;
  for (std::size_t gpu = 0; gpu < node.gpus; ++gpu) sum += node.load[gpu].peak();
  return node.gpus == 0 ? 0 : kMachine * sum / (100.0 * node.gpus);
}

TaskLoad::TaskLoad(const Task& task) {
  if (task.gpus == 0) return;
  curve = expected_load(task);
  NodeState idle;
  idle.gpus = 1;
  on_idle = load_cost(idle, curve, 0);
}

std::optional<Choice> best_choice(const Policy& policy, const NodeState& node, double machine,
                                  const TaskLoad& load, std::span<const Option> options) {
  std::optional<Choice> best;
  const double weight = policy.load_weight();
  for (const Option& option : options) {
    Choice choice{option.score, 0};
    if (weight > 0 && option.take > 0) {
      const Coolest cool = coolest(node, load, option);
      choice.gpus = cool.gpus;
      choice.score -= weight * (cool.cost + machine);
    } else {
      choice.gpus = lowest(option.gpus, option.take);
    }
    if (!best || choice.score > best->score) best = choice;
  }
  return best;
}

std::optional<Choice> choose(Policy& policy, const NodeState& node, const Task& task) {
  std::vector<Option> options;
  policy.options(node, task, options);
  return best_choice(policy, node, machine_cost(node), TaskLoad(task), options);
}

}  // namespace gpulet::scheduler
