#include "placement/reason.h"

#include <algorithm>
#include <set>

namespace gpulet::placement {

namespace {

constexpr std::size_t kMaxNamed = 16;  // a line stays a line

std::string list(const std::vector<std::string>& words) {
  std::string text;
  const std::size_t shown = std::min(words.size(), kMaxNamed);
  for (std::size_t i = 0; i < shown; ++i) {
    if (i > 0) text += i + 1 == words.size() ? " and " : ", ";
    text += words[i];
  }
  if (shown < words.size()) text += " and " + std::to_string(words.size() - shown) + " more";
  return text;
}

// "all linked by NV18", "linked by NV1 to NV2", "4 of 6 pairs linked by NVLink, the others PIX at best, SYS at worst"
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
      const topology::Pair& pair = topology.between(gpus[j], gpus[i]);
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
    pcie = nearest->pcie == farthest->pcie
               ? topology::label(*nearest)
               : topology::label(*nearest) + " at best, " + topology::label(*farthest) + " at worst";
  }
  if (linked == 0) return "over PCIe, " + pcie;
  if (linked < pairs) {
    return std::to_string(linked) + " of " + std::to_string(pairs) + " pairs linked by NVLink, the others " + pcie;
  }
  if (most->nvlinks() == least->nvlinks()) {
    return (pairs > 1 ? "all linked by " : "linked by ") + topology::label(*most);
  }
  return "all linked, " + topology::label(*least) + " to " + topology::label(*most);
}

std::string describe_numa(const topology::Topology& topology, const std::vector<std::size_t>& gpus) {
  std::set<int> nodes;
  for (const std::size_t gpu : gpus) {
    if (gpu < topology.numa_nodes.size() && topology.numa_nodes[gpu]) nodes.insert(*topology.numa_nodes[gpu]);
  }
  if (nodes.empty()) return {};
  std::vector<std::string> words;
  for (const int node : nodes) words.push_back(std::to_string(node));
  return (nodes.size() == 1 ? ", on NUMA node " : ", across NUMA nodes ") + list(words);
}

std::string describe_why(const Ask& ask, const Answer& answer) {
  const std::string available = std::to_string(ask.available.size());
  if (ask.required.size() == ask.size) return "all of them required";
  const std::string with =
      ask.required.empty() ? "" : " that holds the " + std::to_string(ask.required.size()) + " required";
  if (ask.available.size() == ask.size) return ask.size == 1 ? "the only one available" : "all that is available";
  if (ask.size == 1) return "of the " + available + " available the one whose loss costs the others least";
  if (ask.policy == Policy::kTightest) return "the best linked set of the " + available + " available" + with;
  return "in the best split of the " + available + " available into sets of " + std::to_string(ask.size) + with +
         ", total " + std::to_string(answer.partition_score);
}

}  // namespace

std::string describe_set(const topology::Topology& topology, const std::vector<std::size_t>& gpus) {
  std::vector<std::string> words;
  for (const std::size_t gpu : gpus) words.push_back(std::to_string(gpu));
  if (gpus.size() == 1) return "GPU " + words.front() + describe_numa(topology, gpus);
  return "GPUs " + list(words) + ", " + describe_links(topology, gpus) + describe_numa(topology, gpus);
}

std::string explain(const topology::Topology& topology, const std::vector<std::size_t>& gpus, const Ask& ask,
                    const Answer& answer, Method method) {
  std::string text = describe_set(topology, gpus) + "; " + describe_why(ask, answer);
  if (method == Method::kBounded) {
    text += "; found by greedy growth and swaps, not proven best: too many different GPUs for exact tables";
  }
  return text;
}

std::string explain_shared(const std::vector<SharedGpus::Use>& uses, SharedPolicy policy) {
  std::vector<std::string> words;
  for (const SharedGpus::Use& use : uses) {
    words.push_back(std::to_string(use.taken) + (use.taken == 1 ? " share" : " shares") + " of GPU " +
                    std::to_string(use.gpu) + " (" + std::to_string(use.in_use) + " of " + std::to_string(use.total) +
                    " in use before)");
  }
  return list(words) + (policy == SharedPolicy::kDistributed ? "; distributed: the least used first"
                                                              : "; packed: the most used first");
}

}  // namespace gpulet::placement
