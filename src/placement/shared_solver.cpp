#include "placement/shared_solver.h"
#include "base/device_id.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace gpulet::placement {

namespace {

// The state of one GPU or MIG device during a choice.
struct Usage {
  std::size_t allocated = 0;
  std::size_t picked = 0;
  std::size_t free = 0;
  bool lacks_memory = false;  // for one share more
  GpuLoad load;
};

// Whether `a` is preferred to `b`, and whether they are equal.
int compare(const Usage& a, const Usage& b, SharedPolicy policy) {
  if (a.lacks_memory != b.lacks_memory) return a.lacks_memory ? 1 : -1;
  if (a.allocated != b.allocated) {
    const bool first =
        policy == SharedPolicy::kDistributed ? a.allocated < b.allocated : a.allocated > b.allocated;
    return first ? -1 : 1;
  }
  if (a.picked != b.picked) return a.picked < b.picked ? -1 : 1;
  if (a.load.busy_percent != b.load.busy_percent) return a.load.busy_percent < b.load.busy_percent ? -1 : 1;
  if (a.load.memory_percent != b.load.memory_percent)
    return a.load.memory_percent < b.load.memory_percent ? -1 : 1;
  return 0;
}

void pick_share(Usage& usage) {
  ++usage.allocated;
  ++usage.picked;
  --usage.free;
}

// Whether the next of `left` shares may come from the GPU, of a choice that has `picked` shares already.
bool may_follow(SharesOn where, const Usage& gpu, std::size_t picked, std::size_t left) {
  switch (where) {
    case SharesOn::kAnyGpu:
      return true;
    case SharesOn::kOneGpu:
      return gpu.picked == picked && gpu.free >= left;
    case SharesOn::kDifferentGpus:
      return gpu.picked == 0;
  }
  return true;
}

GpuLoad load_of(const Request& ask, std::size_t gpu) {
  return gpu < ask.loads.size() ? ask.loads[gpu] : GpuLoad{};
}

}  // namespace

SharedSolver::SharedSolver(const topology::Topology& topology, const std::vector<Device>& devices) {
  std::unordered_map<std::size_t, std::uint32_t> gpu_at;
  std::unordered_map<std::string_view, std::uint32_t> unit_at;
  for (const Device& device : devices) {
    const auto [gpu, new_gpu] = gpu_at.try_emplace(device.gpu, static_cast<std::uint32_t>(gpus_.size()));
    if (new_gpu) gpus_.push_back({device.gpu, 0, device.memory_percent, {}});
    const auto [unit, new_unit] =
        unit_at.try_emplace(without_share(device.id.str()), static_cast<std::uint32_t>(units_.size()));
    if (new_unit) {
      units_.push_back({gpu->second, 0, device.memory_slice});
      gpus_[gpu->second].units.push_back(unit->second);
    }
    ++units_[unit->second].total;
    ++gpus_[units_[unit->second].gpu].total;
    unit_of_.push_back(unit->second);
  }
  for (Gpu& gpu : gpus_) {
    std::ranges::stable_sort(gpu.units, {}, [&](std::uint32_t unit) { return units_[unit].memory_slice; });
  }
  std::vector<Device> whole;
  for (const Gpu& gpu : gpus_) whole.push_back({{}, gpu.index, false});
  links_ = make_problem(topology, whole);
}

bool SharedSolver::lacks_memory(const Gpu& gpu, const GpuLoad& load, std::size_t shares) {
  constexpr unsigned kAll = 100;
  return load.memory_percent + shares * gpu.share_percent > kAll;
}

Solution SharedSolver::choose_shares(const Request& ask, SharedPolicy policy, SharesOn where) const {
  std::vector<Usage> gpus(gpus_.size());
  std::vector<Usage> units(units_.size());
  std::vector<std::vector<Position>> free(units_.size());  // the last is allocated first
  for (std::size_t i = 0; i < gpus_.size(); ++i) gpus[i].allocated = gpus_[i].total;
  for (std::size_t i = 0; i < units_.size(); ++i) units[i].allocated = units_[i].total;
  for (std::size_t i = ask.available.size(), left = ask.required.size(); i-- > 0;) {
    const Position position = ask.available[i];
    const std::uint32_t unit = unit_of_[position];
    Usage& of_unit = units[unit];
    Usage& of_gpu = gpus[units_[unit].gpu];
    if (left > 0 && ask.required[left - 1] == position) {  // counts as allocated
      --left;
      ++of_unit.picked;
      ++of_gpu.picked;
      continue;
    }
    --of_unit.allocated;
    --of_gpu.allocated;
    ++of_unit.free;
    ++of_gpu.free;
    free[unit].push_back(position);
  }

  Solution answer{ask.required, 0, 0};
  const auto update_memory = [&](std::size_t gpu) {
    const std::size_t more = where == SharesOn::kOneGpu ? ask.size - answer.chosen.size() : 1;
    gpus[gpu].lacks_memory = lacks_memory(gpus_[gpu], gpus[gpu].load, gpus[gpu].picked + more);
  };
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    gpus[i].load = load_of(ask, gpus_[i].index);
    update_memory(i);
  }

  std::vector<std::int64_t> links(gpus_.size(), 0);  // of each GPU to those picked from
  const auto link = [&](std::size_t gpu) {
    for (std::size_t i = 0; i < gpus_.size(); ++i) links[i] += links_.weight(gpu, i);
  };
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus[i].picked > 0) link(i);
  }

  const auto best_gpu = [&](SharesOn allowed) {
    std::size_t gpu = gpus_.size();
    const std::size_t picked = answer.chosen.size();
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      if (gpus[i].free == 0 || !may_follow(allowed, gpus[i], picked, ask.size - picked)) continue;
      const int order = gpu == gpus_.size() ? -1 : compare(gpus[i], gpus[gpu], policy);
      if (order < 0 || (order == 0 && links[i] > links[gpu])) gpu = i;
    }
    return gpu;
  };
  while (answer.chosen.size() < ask.size) {
    std::size_t gpu = best_gpu(where);
    if (gpu == gpus_.size()) gpu = best_gpu(SharesOn::kAnyGpu);
    std::uint32_t unit = 0;
    bool found = false;
    for (const std::uint32_t candidate : gpus_[gpu].units) {
      if (units[candidate].free == 0 || (found && compare(units[candidate], units[unit], policy) >= 0))
        continue;
      unit = candidate;
      found = true;
    }
    if (gpus[gpu].picked == 0) link(gpu);
    pick_share(gpus[gpu]);
    pick_share(units[unit]);
    answer.chosen.push_back(free[unit].back());
    free[unit].pop_back();
    update_memory(gpu);
  }
  std::sort(answer.chosen.begin(), answer.chosen.end());
  for (std::size_t a = 0; a < gpus_.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      answer.score += static_cast<std::int64_t>(gpus[a].picked * gpus[b].picked) * links_.weight(a, b);
    }
  }
  return answer;
}

std::vector<SharedSolver::Use> SharedSolver::uses(const Request& ask,
                                                  const std::vector<Position>& chosen) const {
  std::vector<Use> uses;
  for (const Gpu& gpu : gpus_)
    uses.push_back({gpu.index, 0, gpu.total, gpu.total, load_of(ask, gpu.index), false});
  for (const Position position : ask.available) --uses[units_[unit_of_[position]].gpu].in_use;
  for (const Position position : chosen) ++uses[units_[unit_of_[position]].gpu].taken;
  for (std::size_t i = 0; i < gpus_.size(); ++i)
    uses[i].lacks_memory = lacks_memory(gpus_[i], uses[i].load, uses[i].taken);
  std::erase_if(uses, [](const Use& use) { return use.taken == 0; });
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.gpu < b.gpu; });
  return uses;
}

namespace {

constexpr std::size_t kMaxNamed = 16;  // keeps the reason short

std::string index_list(const std::vector<std::string>& words) {
  std::string text;
  const std::size_t shown = std::min(words.size(), kMaxNamed);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  if (shown < words.size()) text += " and " + std::to_string(words.size() - shown) + " more";
  return text;
}

// "all linked by NV18", "linked by NV1 to NV2", "4 of 6 pairs linked by NVLink, the others PIX at best, SYS
// at worst"
std::string describe_links(const topology::Topology& topology, const std::vector<std::size_t>& gpus) {
  std::size_t pairs = 0;
  std::size_t linked = 0;
  const topology::Pair* most = nullptr;
  const topology::Pair* least = nullptr;
  const topology::Pair* nearest = nullptr;
  const topology::Pair* farthest = nullptr;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (gpus[i] >= topology.size || gpus[j] >= topology.size) continue;
      const topology::Pair& pair = topology.pair_between(gpus[j], gpus[i]);
      ++pairs;
      if (pair.nvlinks() > 0) {
        ++linked;
        if (most == nullptr || pair.nvlinks() > most->nvlinks()) most = &pair;
        if (least == nullptr || pair.nvlinks() < least->nvlinks()) least = &pair;
      } else {
        if (nearest == nullptr || pair.pcie > nearest->pcie) nearest = &pair;
        if (farthest == nullptr || pair.pcie < farthest->pcie) farthest = &pair;
      }
    }
  }
  if (pairs == 0) return "links unknown";
  std::string pcie;
  if (linked < pairs) {
    pcie = nearest->pcie == farthest->pcie ? topology::pair_label(*nearest)
                                           : topology::pair_label(*nearest) + " at best, " +
                                                 topology::pair_label(*farthest) + " at worst";
  }
  if (linked == 0) return "over PCIe, " + pcie;
  if (linked < pairs) {
    return std::to_string(linked) + " of " + std::to_string(pairs) + " pairs linked by NVLink, the others " +
           pcie;
  }
  if (most->nvlinks() == least->nvlinks()) {
    return (pairs > 1 ? "all linked by " : "linked by ") + topology::pair_label(*most);
  }
  return "all linked, " + topology::pair_label(*least) + " to " + topology::pair_label(*most);
}

std::string describe_numa(const topology::Topology& topology, const std::vector<std::size_t>& gpus) {
  std::set<int> nodes;
  for (const std::size_t gpu : gpus) {
    if (gpu < topology.numa_nodes.size() && topology.numa_nodes[gpu]) nodes.insert(*topology.numa_nodes[gpu]);
  }
  if (nodes.empty()) return {};
  std::vector<std::string> words;
  for (const int node : nodes) words.push_back(std::to_string(node));
  return (nodes.size() == 1 ? ", on NUMA node " : ", across NUMA nodes ") + index_list(words);
}

std::string describe_why(const Request& ask, const Solution& answer) {
  const std::string available = std::to_string(ask.available.size());
  if (ask.required.size() == ask.size) return "all of them required";
  const std::string with =
      ask.required.empty() ? "" : " that holds the " + std::to_string(ask.required.size()) + " required";
  if (ask.available.size() == ask.size)
    return ask.size == 1 ? "the only one available" : "all that is available";
  if (ask.size == 1) return "of the " + available + " available the one whose loss costs the others least";
  if (ask.policy == Policy::kTightest) return "the best linked set of the " + available + " available" + with;
  return "in the best split of the " + available + " available into sets of " + std::to_string(ask.size) +
         with + ", total " + std::to_string(answer.partition_score);
}

std::string describe_load(const SharedSolver::Use& use) {
  std::string text;
  if (use.load.busy_percent > 0 || use.load.memory_percent > 0) {
    text = "; " + std::to_string(use.load.busy_percent) + " % busy, " +
           std::to_string(use.load.memory_percent) + " % of its memory in use";
  }
  return text + (use.lacks_memory ? ": too little is free for the share, as on all others" : "");
}

}  // namespace

std::string describe_set(const topology::Topology& topology, const std::vector<std::size_t>& gpus) {
  std::vector<std::string> words;
  for (const std::size_t gpu : gpus) words.push_back(std::to_string(gpu));
  if (gpus.size() == 1) return "GPU " + words.front() + describe_numa(topology, gpus);
  return "GPUs " + index_list(words) + ", " + describe_links(topology, gpus) + describe_numa(topology, gpus);
}

std::string explain_choice(const topology::Topology& topology, const std::vector<std::size_t>& gpus,
                           const Request& ask, const Solution& answer, Method method) {
  std::string text = describe_set(topology, gpus) + "; " + describe_why(ask, answer);
  if (method == Method::kBounded) {
    text += "; found by greedy growth and swaps, not proven best: too many different GPUs for exact tables";
  }
  return text;
}

std::string explain_shared(const std::vector<SharedSolver::Use>& uses, SharedPolicy policy) {
  std::vector<std::string> words;
  for (const SharedSolver::Use& use : uses) {
    words.push_back(std::to_string(use.taken) + (use.taken == 1 ? " share" : " shares") + " of GPU " +
                    std::to_string(use.gpu) + " (" + std::to_string(use.in_use) + " of " +
                    std::to_string(use.total) + " in use before" + describe_load(use) + ")");
  }
  return index_list(words) + (policy == SharedPolicy::kDistributed ? "; distributed: the least used first"
                                                                   : "; packed: the most used first");
}

}  // namespace gpulet::placement
