#include "scheduler/core/policy.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "scheduler/core/fragmentation.h"
#include "scheduler/model/links.h"

namespace gpulet::scheduler {
namespace {

// Contention by utilization in percent: 1 at 100, an eighth at 60, eight at 168. Steep enough that two GPUs
// at 60 are better than one at 100 and one at 20, and that peaks at different hours are kept apart.
constexpr double kSteepness = 4;
// Cost of a percent of memory beyond the GPU's: tasks are killed, not slowed down.
constexpr double kMemoryShortage = 0.1;
// Cost of a machine that is busy all over, relative to an idle one, when the GPU itself is free.
constexpr double kMachine = 0.25;

const std::array<double, 256>& contention_table() {
  static const std::array<double, 256> table = [] {
    std::array<double, 256> made{};
    for (std::size_t percent = 0; percent < made.size(); ++percent) {
      made[percent] = std::pow(static_cast<double>(percent) / 100, kSteepness);
    }
    return made;
  }();
  return table;
}

double memory_shortage_cost(unsigned memory_percent) {
  return memory_percent <= 100 ? 0 : kMemoryShortage * (memory_percent - 100);
}

// The `take` lowest-numbered of `gpus`.
GpuSet lowest_gpus(GpuSet gpus, unsigned take) {
  GpuSet set = 0;
  for (; take > 0 && gpus != 0; --take) {
    set |= gpus & -gpus;
    gpus &= gpus - 1;
  }
  return set;
}

// The `take` of `gpus` with the least cost, lower ones first, and their mean cost.
struct LeastLoaded {
  GpuSet gpus = 0;
  double cost = 0;
};
LeastLoaded least_loaded_gpus(const NodeState& node, const TaskLoad& load, const Option& option) {
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
    gpus[count++] = {idle ? load.on_idle : gpu_load_cost(node, load.curve, number), number};
  }
  if (alike) return {lowest_gpus(option.gpus, option.count), load.on_idle};
  LeastLoaded best;
  const std::size_t take = std::min<std::size_t>(option.count, count);
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

double gpu_load_cost(const NodeState& node, const LoadCurve& task_load, unsigned gpu) {
  const std::array<double, 256>& table = contention_table();
  const LoadCurve& now = node.load[gpu];
  double cost = 0;
  for (std::size_t part = 0; part < kDayParts; ++part) {
    const unsigned before = now.busy[part];
    cost += table[std::min(before + task_load.busy[part], 255u)] - table[before];
  }
  return cost / kDayParts + memory_shortage_cost(unsigned{now.memory} + task_load.memory) -
         memory_shortage_cost(now.memory);
}

double node_load_cost(const NodeState& node) {
  unsigned sum = 0;
  for (std::size_t gpu = 0; gpu < node.gpus; ++gpu) sum += node.load[gpu].peak();
  return node.gpus == 0 ? 0 : kMachine * sum / (100.0 * node.gpus);
}

TaskLoad::TaskLoad(const Task& task) {
  if (task.gpus == 0) return;
  curve = expected_load(task);
  NodeState idle;
  idle.gpus = 1;
  on_idle = gpu_load_cost(idle, curve, 0);
}

std::optional<Choice> best_choice(const Policy& policy, const NodeState& node, double machine,
                                  const TaskLoad& load, std::span<const Option> options) {
  std::optional<Choice> best;
  const double weight = policy.load_weight();
  for (const Option& option : options) {
    Choice choice{option.score, 0};
    if (weight > 0 && option.count > 0) {
      const LeastLoaded cool = least_loaded_gpus(node, load, option);
      choice.gpus = cool.gpus;
      choice.score -= weight * (cool.cost + machine);
    } else {
      choice.gpus = lowest_gpus(option.gpus, option.count);
    }
    if (!best || choice.score > best->score) best = choice;
  }
  return best;
}

std::optional<Choice> choose_placement(Policy& policy, const NodeState& node, const Task& task) {
  std::vector<Option> options;
  policy.placement_options(node, task, options);
  return best_choice(policy, node, node_load_cost(node), TaskLoad(task), options);
}

// The policies; docs/scheduling.md explains when to use each.

namespace {

// Remaining capacity is measured in nodes of this size, as in the published BestFit.
constexpr double kNodeCpuMilli = 128'000;
constexpr double kNodeGpuMilli = 8'000;

double remaining_share(const NodeState& node) {
  const double cpu = node.cpu_milli == kUncounted ? 0 : static_cast<double>(node.cpu_milli) / kNodeCpuMilli;
  return cpu + node.free_milli() / kNodeGpuMilli;
}
double remaining_share_after(const NodeState& node, const Task& task) {
  const double cpu = node.cpu_milli == kUncounted ? 0 : static_cast<double>(task.cpu_milli) / kNodeCpuMilli;
  return remaining_share(node) - cpu - static_cast<double>(task.total_milli()) / kNodeGpuMilli;
}

// The `count` fullest of `gpus`, lower ones first.
GpuSet fullest_gpus(const NodeState& node, GpuSet gpus, unsigned count) {
  std::array<unsigned, kMaxGpus> order{};
  std::size_t known = 0;
  for (; gpus != 0; gpus &= gpus - 1) order[known++] = static_cast<unsigned>(std::countr_zero(gpus));
  std::stable_sort(order.begin(), order.begin() + known,
                   [&](unsigned a, unsigned b) { return node.free[a] < node.free[b]; });
  GpuSet set = 0;
  for (std::size_t at = 0; at < std::min<std::size_t>(count, known); ++at) set |= GpuSet{1} << order[at];
  return set;
}

// Calls `visit(free, gpus)` for each distinct free share that is large enough, the smallest first.
template <class Visit>
void for_each_share(const NodeState& node, const Task& task, const Visit& visit) {
  for (GpuSet left = node.gpus_with_free(task.gpu_milli); left != 0;) {
    unsigned least = kWhole + 1u;
    for (GpuSet at = left; at != 0; at &= at - 1) {
      least = std::min<unsigned>(least, node.free[static_cast<std::size_t>(std::countr_zero(at))]);
    }
    GpuSet alike = 0;
    for (GpuSet at = left; at != 0; at &= at - 1) {
      const auto gpu = static_cast<unsigned>(std::countr_zero(at));
      if (node.free[gpu] == least) alike |= GpuSet{1} << gpu;
    }
    visit(least, alike);
    left &= ~alike;
  }
}

// The options of a policy without GPU preference: whole GPUs are equal; several shares take the fullest
// GPUs. `sharing` is called for a single share.
template <class Score, class Sharing>
void default_options(const NodeState& node, const Task& task, std::vector<Option>& options,
                     const Score& score, const Sharing& sharing) {
  options.clear();
  if (!node.fits(task)) return;
  if (task.is_shared()) {
    for_each_share(node, task, sharing);
    return;
  }
  const GpuSet fit = task.gpus == 0 ? 0 : node.gpus_with_free(task.gpu_milli);
  Option option{0, task.gpu_milli == kWhole ? fit : fullest_gpus(node, fit, task.gpus), task.gpus};
  option.score = score(option);
  options.push_back(option);
}

// The node after the task took any of an option's GPUs, which are equal.
NodeState node_after(const NodeState& node, const Task& task, const Option& option) {
  NodeState left = node;
  GpuSet taken = 0;
  GpuSet from = option.gpus;
  for (unsigned count = 0; count < option.count; ++count, from &= from - 1) taken |= from & -from;
  left.allocate_task(task, taken);
  return left;
}

class RandomPolicy final : public Policy {
 public:
  std::string_view policy_name() const override { return "random"; }
  void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    options.clear();
    if (!node.fits(task)) return;
    options.push_back({0, task.gpus == 0 ? 0 : node.gpus_with_free(task.gpu_milli), task.gpus});
  }
  bool draws_gpus() const override { return true; }
};

class BinpackPolicy final : public Policy {
 public:
  std::string_view policy_name() const override { return "binpack"; }
  void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double score = -remaining_share_after(node, task);
    default_options(
        node, task, options, [&](const Option&) { return score; },
        [&](unsigned, GpuSet alike) {
          if (options.empty()) options.push_back({score, alike, 1});  // only the fullest
        });
  }
};

class SpreadPolicy final : public Policy {
 public:
  std::string_view policy_name() const override { return "spread"; }
  void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double score = remaining_share_after(node, task);
    default_options(
        node, task, options, [&](const Option&) { return score; },
        [&](unsigned, GpuSet alike) { options.assign(1, {score, alike, 1}); });  // the emptiest comes last
  }
};

class FragmentationPolicy final : public Policy {
 public:
  explicit FragmentationPolicy(const Workload& workload) : estimator_(workload) {}
  std::string_view policy_name() const override { return "fragmentation"; }
  void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const auto fall = [&](const Option& option) {
      return estimator_.estimate(node).fragmented -
             estimator_.estimate(node_after(node, task, option)).fragmented;
    };
    default_options(node, task, options, fall, [&](unsigned, GpuSet alike) {
      Option option{0, alike, 1};
      option.score = fall(option);
      options.push_back(option);
    });
  }

 private:
  FragmentationEstimator estimator_;
};

// The set of whole GPUs that the node's placement would choose. Nullopt if links are unknown or irrelevant.
std::optional<LinkedSet> choose_linked_set(LinkChooser& chooser, const NodeState& node, const Task& task) {
  if (!node.links || task.gpus == 0 || task.gpu_milli != kWhole) return std::nullopt;
  const GpuSet known = (GpuSet{1} << std::min(node.links->ids.size(), kMaxGpus)) - 1;
  const GpuSet free = node.gpus_with_free(kWhole) & known;
  if (std::popcount(free) < task.gpus) return std::nullopt;
  const LinkedSet set = chooser.choose_gpus(node.links, free, task.gpus);
  return std::popcount(set.gpus) == task.gpus ? std::optional(set) : std::nullopt;
}
// Weight of a link that stays unused, relative to a used one.
constexpr double kUnusedLink = 0.3;
double link_score(const LinkedSet& set) { return set.pair_score - kUnusedLink * set.free_pair_score; }

class TopologyPolicy final : public Policy {
 public:
  std::string_view policy_name() const override { return "topology"; }
  void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    binpack_.placement_options(node, task, options);
    const auto links = options.empty() ? std::nullopt : choose_linked_set(chooser_, node, task);
    if (!links) return;
    // A pair score is at least 10; remaining capacity is at most a few units and only breaks ties.
    options.assign(1, {link_score(*links) + options.front().score, links->gpus, task.gpus});
  }

 private:
  BinpackPolicy binpack_;
  LinkChooser chooser_;
};

class LoadPolicy final : public Policy {
 public:
  std::string_view policy_name() const override { return "load"; }
  void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double score = -kPacking * remaining_share_after(node, task);
    default_options(
        node, task, options, [&](const Option&) { return score; },
        [&](unsigned, GpuSet alike) { options.push_back({score, alike, 1}); });
  }
  double load_weight() const override { return 1; }

 private:
  static constexpr double kPacking = 0.001;  // breaks ties between equally busy nodes
};

// The default: a blend of all others, in thousandths of a GPU.
class DefaultPolicy final : public Policy {
 public:
  explicit DefaultPolicy(const Workload& workload) : estimator_(workload) {}
  std::string_view policy_name() const override { return "default"; }
  void placement_options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double packing = -kPacking * remaining_share_after(node, task);
    const auto score = [&](const Option& option) {
      return weighted_fragmentation(node) - weighted_fragmentation(node_after(node, task, option)) + packing;
    };
    default_options(node, task, options, score, [&](unsigned, GpuSet alike) {
      Option option{0, alike, 1};
      option.score = score(option);
      options.push_back(option);
    });
    const auto links = options.empty() ? std::nullopt : choose_linked_set(chooser_, node, task);
    if (!links) return;
    options.front().score += kLink * link_score(*links);
    options.front().gpus = links->gpus;
  }
  double load_weight() const override { return kLoad; }

 private:
  double weighted_fragmentation(const NodeState& node) {
    const Fragmentation found = estimator_.estimate(node);
    return kFragmentation * found.fragmented + (1 - kFragmentation) * found.unhosted;
  }

  static constexpr double kFragmentation = 0.78;
  static constexpr double kPacking = 2;  // for a whole standard node of remaining capacity
  static constexpr double kLink = 1;     // an NVLink in each pair is worth a tenth of a GPU
  static constexpr double kLoad = 4000;  // full load in one part of the day costs half a GPU
  FragmentationEstimator estimator_;
  LinkChooser chooser_;
};

struct PolicyFactory {
  std::string_view name;
  std::string_view published;  // its name in papers, if any
  bool simulator_only;
  std::shared_ptr<Policy> (*make)(const PolicyContext&);
};
const std::vector<PolicyFactory>& policy_factories() {
  static const std::vector<PolicyFactory> table = {
      {"default", "", false,
       [](const PolicyContext& context) -> std::shared_ptr<Policy> {
         return std::make_shared<DefaultPolicy>(context.workload);
       }},
      {"binpack", "bestfit", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<BinpackPolicy>(); }},
      {"spread", "", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<SpreadPolicy>(); }},
      {"topology", "", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<TopologyPolicy>(); }},
      {"fragmentation", "fgd", false,
       [](const PolicyContext& context) -> std::shared_ptr<Policy> {
         return std::make_shared<FragmentationPolicy>(context.workload);
       }},
      {"load", "", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<LoadPolicy>(); }},
      {"random", "", true,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<RandomPolicy>(); }},
  };
  return table;
}

std::vector<std::string> list_policy_names(bool simulator) {
  std::vector<std::string> list;
  for (const PolicyFactory& maker : policy_factories()) {
    if (simulator || !maker.simulator_only) list.emplace_back(maker.name);
  }
  return list;
}

Result<std::shared_ptr<Policy>> make_named_policy(std::string_view name, const PolicyContext& context,
                                                  bool simulator) {
  for (const PolicyFactory& maker : policy_factories()) {
    if (maker.simulator_only && !simulator) continue;
    if (name == maker.name || (simulator && !name.empty() && name == maker.published))
      return maker.make(context);
  }
  const std::vector<std::string> known = list_policy_names(simulator);
  const auto near = text::nearest(name, known);
  return fail(Code::kInvalidArgument, "unknown policy '" + std::string(name.substr(0, 64)) + "'; " +
                                          (near ? "did you mean " + *near + "? Policies: " : "policies: ") +
                                          text::join(known, ", "));
}

}  // namespace

std::vector<std::string> policy_names() { return list_policy_names(false); }
std::vector<std::string> simulator_policy_names() { return list_policy_names(true); }

Result<std::shared_ptr<Policy>> make_policy(std::string_view name, const PolicyContext& context) {
  return make_named_policy(name, context, false);
}
Result<std::shared_ptr<Policy>> make_simulator_policy(std::string_view name, const PolicyContext& context) {
  return make_named_policy(name, context, true);
}

}  // namespace gpulet::scheduler
