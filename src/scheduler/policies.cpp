// The policies themselves, each a few lines: docs/scheduling.md says what each is for.
#include <algorithm>
#include <array>

#include "base/text.h"
#include "scheduler/links.h"
#include "scheduler/policy.h"
#include "scheduler/waste.h"

namespace gpulet::scheduler {
namespace {

// What is left of a node is measured in nodes of this size, as the published BestFit does.
constexpr double kNodeCpuMilli = 128'000;
constexpr double kNodeGpuMilli = 8'000;

double left_over(const NodeState& node) {
  const double cpu = node.cpu_milli == kUncounted ? 0 : static_cast<double>(node.cpu_milli) / kNodeCpuMilli;
  return cpu + node.free_milli() / kNodeGpuMilli;
}
double left_over_after(const NodeState& node, const Task& task) {
  const double cpu = node.cpu_milli == kUncounted ? 0 : static_cast<double>(task.cpu_milli) / kNodeCpuMilli;
  return left_over(node) - cpu - static_cast<double>(task.total_milli()) / kNodeGpuMilli;
}

// The `count` of `gpus` with the least free, lower ones first.
GpuSet fullest(const NodeState& node, GpuSet gpus, unsigned count) {
  std::array<unsigned, kMaxGpus> order{};
  std::size_t known = 0;
  for (; gpus != 0; gpus &= gpus - 1) order[known++] = static_cast<unsigned>(std::countr_zero(gpus));
  std::stable_sort(order.begin(), order.begin() + known,
                   [&](unsigned a, unsigned b) { return node.free[a] < node.free[b]; });
  GpuSet set = 0;
  for (std::size_t at = 0; at < std::min<std::size_t>(count, known); ++at) set |= GpuSet{1} << order[at];
  return set;
}

// Calls `visit(free, gpus)` for each distinct free share of at least the task's, the least first.
template <class Visit>
void each_share(const NodeState& node, const Task& task, const Visit& visit) {
  for (GpuSet left = node.with_free(task.gpu_milli); left != 0;) {
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

// Where the policy has no reason to prefer one GPU to another: whole GPUs are all alike, of several shares
// the fullest GPUs are taken. `sharing` is called for one share alone.
template <class Score, class Sharing>
void usual_options(const NodeState& node, const Task& task, std::vector<Option>& options, const Score& score,
                   const Sharing& sharing) {
  options.clear();
  if (!node.fits(task)) return;
  if (task.shares()) {
    each_share(node, task, sharing);
    return;
  }
  const GpuSet fit = task.gpus == 0 ? 0 : node.with_free(task.gpu_milli);
  Option option{0, task.gpu_milli == kWhole ? fit : fullest(node, fit, task.gpus), task.gpus};
  option.score = score(option);
  options.push_back(option);
}

// The node after the task: on any of an option's GPUs, for they are alike.
NodeState after(const NodeState& node, const Task& task, const Option& option) {
  NodeState left = node;
  GpuSet taken = 0;
  GpuSet from = option.gpus;
  for (unsigned count = 0; count < option.take; ++count, from &= from - 1) taken |= from & -from;
  left.take(task, taken);
  return left;
}

class Random final : public Policy {
 public:
  std::string_view name() const override { return "random"; }
  void options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    options.clear();
    if (!node.fits(task)) return;
    options.push_back({0, task.gpus == 0 ? 0 : node.with_free(task.gpu_milli), task.gpus});
  }
  bool draws_gpus() const override { return true; }
};

class Binpack final : public Policy {
 public:
  std::string_view name() const override { return "binpack"; }
  void options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double score = -left_over_after(node, task);
    usual_options(
        node, task, options, [&](const Option&) { return score; },
        [&](unsigned, GpuSet alike) {
          if (options.empty()) options.push_back({score, alike, 1});  // the fullest alone
        });
  }
};

class SpreadPolicy final : public Policy {
 public:
  std::string_view name() const override { return "spread"; }
  void options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double score = left_over_after(node, task);
    usual_options(
        node, task, options, [&](const Option&) { return score; },
        [&](unsigned, GpuSet alike) { options.assign(1, {score, alike, 1}); });  // the emptiest comes last
  }
};

class Fragmentation final : public Policy {
 public:
  explicit Fragmentation(const Workload& workload) : meter_(workload) {}
  std::string_view name() const override { return "fragmentation"; }
  void options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const auto fall = [&](const Option& option) {
      return meter_.of(node).fragmentation - meter_.of(after(node, task, option)).fragmentation;
    };
    usual_options(node, task, options, fall, [&](unsigned, GpuSet alike) {
      Option option{0, alike, 1};
      option.score = fall(option);
      options.push_back(option);
    });
  }

 private:
  WasteMeter meter_;
};

// A set of whole GPUs as the node's own placement gives it. Nullopt where links are not known or play no
// part.
std::optional<LinkedSet> linked(LinkChooser& chooser, const NodeState& node, const Task& task) {
  if (!node.links || task.gpus == 0 || task.gpu_milli != kWhole) return std::nullopt;
  const GpuSet known = (GpuSet{1} << std::min(node.links->ids.size(), kMaxGpus)) - 1;
  const GpuSet free = node.with_free(kWhole) & known;
  if (std::popcount(free) < task.gpus) return std::nullopt;
  const LinkedSet set = chooser.choose(node.links, free, task.gpus);
  return std::popcount(set.gpus) == task.gpus ? std::optional(set) : std::nullopt;
}
// How much a link that a task leaves unused counts against one that it uses.
constexpr double kUnusedLink = 0.3;
double link_score(const LinkedSet& set) { return set.pair_score - kUnusedLink * set.of_free; }

class Topology final : public Policy {
 public:
  std::string_view name() const override { return "topology"; }
  void options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    binpack_.options(node, task, options);
    const auto links = options.empty() ? std::nullopt : linked(chooser_, node, task);
    if (!links) return;
    // A pair score is at least 10; what is left of a node is at most a few units, and decides between equals.
    options.assign(1, {link_score(*links) + options.front().score, links->gpus, task.gpus});
  }

 private:
  Binpack binpack_;
  LinkChooser chooser_;
};

class Load final : public Policy {
 public:
  std::string_view name() const override { return "load"; }
  void options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double score = -kPacking * left_over_after(node, task);
    usual_options(
        node, task, options, [&](const Option&) { return score; },
        [&](unsigned, GpuSet alike) { options.push_back({score, alike, 1}); });
  }
  double load_weight() const override { return 1; }

 private:
  static constexpr double kPacking = 0.001;  // decides between equally busy nodes
};

// All of them together, in thousandths of a GPU.
class Blend final : public Policy {
 public:
  explicit Blend(const Workload& workload) : meter_(workload) {}
  std::string_view name() const override { return "default"; }
  void options(const NodeState& node, const Task& task, std::vector<Option>& options) override {
    const double packing = -kPacking * left_over_after(node, task);
    const auto score = [&](const Option& option) {
      return waste(node) - waste(after(node, task, option)) + packing;
    };
    usual_options(node, task, options, score, [&](unsigned, GpuSet alike) {
      Option option{0, alike, 1};
      option.score = score(option);
      options.push_back(option);
    });
    const auto links = options.empty() ? std::nullopt : linked(chooser_, node, task);
    if (!links) return;
    options.front().score += kLink * link_score(*links);
    options.front().gpus = links->gpus;
  }
  double load_weight() const override { return kLoad; }

 private:
  double waste(const NodeState& node) {
    const Waste found = meter_.of(node);
    return kFragmentation * found.fragmentation + (1 - kFragmentation) * found.unhosted;
  }

  static constexpr double kFragmentation = 0.6;
  static constexpr double kPacking = 20;  // thousandths for a whole node of the usual size left over
  static constexpr double kLink = 1;      // an NVLink in each pair is worth a tenth of a GPU
  static constexpr double kLoad = 4000;   // a part of the day at full load costs half a GPU
  WasteMeter meter_;
  LinkChooser chooser_;
};

struct Maker {
  std::string_view name;
  std::string_view published;  // the name that papers give it, where there is one
  bool simulator_only;
  std::shared_ptr<Policy> (*make)(const PolicyContext&);
};
const std::vector<Maker>& makers() {
  static const std::vector<Maker> table = {
      {"default", "", false,
       [](const PolicyContext& context) -> std::shared_ptr<Policy> {
         return std::make_shared<Blend>(context.workload);
       }},
      {"binpack", "bestfit", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<Binpack>(); }},
      {"spread", "", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<SpreadPolicy>(); }},
      {"topology", "", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<Topology>(); }},
      {"fragmentation", "fgd", false,
       [](const PolicyContext& context) -> std::shared_ptr<Policy> {
         return std::make_shared<Fragmentation>(context.workload);
       }},
      {"load", "", false,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<Load>(); }},
      {"random", "", true,
       [](const PolicyContext&) -> std::shared_ptr<Policy> { return std::make_shared<Random>(); }},
  };
  return table;
}

std::vector<std::string> names(bool simulator) {
  std::vector<std::string> list;
  for (const Maker& maker : makers()) {
    if (simulator || !maker.simulator_only) list.emplace_back(maker.name);
  }
  return list;
}

Result<std::shared_ptr<Policy>> made(std::string_view name, const PolicyContext& context, bool simulator) {
  for (const Maker& maker : makers()) {
    if (maker.simulator_only && !simulator) continue;
    if (name == maker.name || (simulator && !name.empty() && name == maker.published))
      return maker.make(context);
  }
  const std::vector<std::string> known = names(simulator);
  const auto near = text::nearest(name, known);
  return fail(Code::kInvalidArgument, "no policy '" + std::string(name.substr(0, 64)) + "'; " +
                                          (near ? "did you mean " + *near + "? There are " : "there are ") +
                                          text::join(known, ", "));
}

}  // namespace

std::vector<std::string> policy_names() { return names(false); }
std::vector<std::string> simulator_policy_names() { return names(true); }

Result<std::shared_ptr<Policy>> policy_named(std::string_view name, const PolicyContext& context) {
  return made(name, context, false);
}
Result<std::shared_ptr<Policy>> simulator_policy_named(std::string_view name, const PolicyContext& context) {
  return made(name, context, true);
}

}  // namespace gpulet::scheduler
