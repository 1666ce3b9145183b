#include "scheduler/core/controller_index.h"

#include <algorithm>

namespace gpulet::scheduler {

void ControllerIndex::set_node(const std::string& node, std::vector<ControllerLoad> loads) {
  if (const auto before = of_node_.find(node); before != of_node_.end()) {
    for (const auto& controller : before->second) {
      const auto found = known_.find(controller);
      if (found == known_.end()) continue;
      std::erase_if(found->second, [&](const auto& one) { return one.node == node; });
      if (found->second.empty()) known_.erase(found);
    }
    of_node_.erase(before);
  }
  for (auto& load : loads) {
    of_node_[node].push_back(load.controller);
    known_[load.controller].push_back({node, std::move(load)});
  }
}

std::optional<ControllerLoad> ControllerIndex::best_load(const std::string& controller) const {
  const auto found = known_.find(controller);
  if (found == known_.end()) return std::nullopt;
  const auto best = std::ranges::max_element(
      found->second, [](const auto& a, const auto& b) { return b.load.is_better_than(a.load); });
  return best->load.hours < kKnownHours ? std::nullopt : std::optional(best->load);
}

bool ControllerIndex::is_known_on(const std::string& node, const std::string& controller) const {
  const auto found = known_.find(controller);
  return found != known_.end() &&
         std::ranges::any_of(found->second, [&](const auto& one) { return one.node == node; });
}

}  // namespace gpulet::scheduler
