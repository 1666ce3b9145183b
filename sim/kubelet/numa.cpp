#include "sim/kubelet/numa.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

namespace gpulet::sim {
namespace {

using Mask = std::uint32_t;
struct Hint {
  std::optional<Mask> mask;  // none: any node will do
  bool preferred = false;
};

bool inside(const std::set<int>& nodes, Mask mask, const std::vector<int>& known) {
  return std::ranges::any_of(nodes, [&](int node) {
    const auto it = std::ranges::find(known, node);
    return it != known.end() && (mask >> (it - known.begin()) & 1u) != 0;
  });
}

std::size_t count_inside(const std::vector<std::set<int>>& devices, Mask mask, const std::vector<int>& known) {
  const auto counts = [&](const auto& nodes) { return inside(nodes, mask, known); };
  return static_cast<std::size_t>(std::ranges::count_if(devices, counts));
}

std::vector<Hint> hints_of(const NumaDemand& demand, const std::vector<int>& known) {
  if (std::ranges::all_of(demand.all, [](const auto& nodes) { return nodes.empty(); })) return {{std::nullopt, true}};
  std::vector<Hint> hints;
  int least = static_cast<int>(known.size());
  for (Mask mask = 1; mask < (Mask{1} << known.size()); ++mask) {
    if (count_inside(demand.all, mask, known) >= demand.request) least = std::min(least, std::popcount(mask));
    if (count_inside(demand.available, mask, known) >= demand.request) hints.push_back({mask, false});
  }
  for (auto& hint : hints) hint.preferred = std::popcount(*hint.mask) == least;
  return hints;
}

// Takes a hint per resource: preferred only if all are, and all say the same.
Hint merge(const std::vector<Hint>& chosen, Mask every) {
  Hint merged{every, true};
  std::optional<Mask> first;
  for (const auto& hint : chosen) {
    merged.preferred &= hint.preferred;
    if (!hint.mask) continue;
    if (!first) first = hint.mask;
    if (*first != *hint.mask) merged.preferred = false;
    *merged.mask &= *hint.mask;
  }
  return merged;
}

bool better(const Hint& a, const Hint& b) {
  if (a.preferred != b.preferred) return a.preferred;
  const int left = std::popcount(*a.mask), right = std::popcount(*b.mask);
  return left != right ? left < right : *a.mask < *b.mask;
}

}  // namespace

NumaDecision decide(TopologyPolicy policy, const std::vector<NumaDemand>& demands) {
  if (policy == TopologyPolicy::kNone) return {};
  std::set<int> nodes;
  for (const auto& demand : demands) {
    for (const auto& device : demand.all) nodes.insert(device.begin(), device.end());
  }
  if (nodes.empty() || nodes.size() > kMaxNumaNodes) return {};
  const std::vector<int> known(nodes.begin(), nodes.end());
  const Mask every = (Mask{1} << known.size()) - 1;

  std::vector<std::vector<Hint>> hints;
  for (const auto& demand : demands) {
    auto own = hints_of(demand, known);
    if (policy == TopologyPolicy::kSingleNumaNode) {
      std::erase_if(own, [](const Hint& hint) {
        return !hint.preferred || (hint.mask && std::popcount(*hint.mask) != 1);
      });
    }
    if (own.empty()) own.push_back({std::nullopt, false});
    hints.push_back(std::move(own));
  }
  Hint best{every, false};
  bool found = false;
  std::vector<Hint> chosen;
  const std::function<void(std::size_t)> combine = [&](std::size_t at) {
    if (at < hints.size()) {
      for (const auto& hint : hints[at]) {
        chosen.push_back(hint);
        combine(at + 1);
        chosen.pop_back();
      }
      return;
    }
    const Hint merged = merge(chosen, every);
    if (*merged.mask == 0) return;
    if (!found || better(merged, best)) best = merged;
    found = true;
  };
  combine(0);

  NumaDecision decision;
  decision.admit = policy == TopologyPolicy::kBestEffort || best.preferred;
  decision.affinity.emplace();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if ((*best.mask >> i & 1u) != 0) decision.affinity->insert(known[i]);
  }
  return decision;
}

}  // namespace gpulet::sim
