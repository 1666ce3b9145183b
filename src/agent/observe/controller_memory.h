// What the Pods of each controller did on this node, kept for those that replace them
// (scheduler/model/controller.h). Published with the node, so that it also serves other nodes, the extender,
// and the next agent. Pure: time is an argument.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/loop.h"
#include "scheduler/model/controller.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::agent {

// After its last Pod here. Longer than a week, so that a weekly Job finds what it did.
inline constexpr std::chrono::hours kControllerMemory{8 * 24};

// At most scheduler::kMaxControllers: the one without a Pod for the longest time is forgotten first.
class ControllerMemory {
 public:
  // The load of one Pod on one GPU, learned from so many whole hours, those of its predecessors included.
  struct PodLoad {
    std::string controller;
    scheduler::LoadCurve curve;
    std::uint32_t hours = 0;
  };
  // Replaces what is known of these controllers by the mean of their Pods; a Pod counts by its hours, up to
  // a day. The others are kept until they are too old.
  void learn_loads(const std::vector<PodLoad>& pods, WallTime now);
  // Adds what another agent or an earlier one knew. What is known here stays, if it was seen as lately.
  void add_loads(const std::vector<scheduler::ControllerLoad>& loads, WallTime now);

  // Null unless at least scheduler::kKnownHours are known.
  const scheduler::ControllerLoad* find_load(const std::string& controller) const;
  // Those of at least scheduler::kKnownHours, by controller.
  std::vector<scheduler::ControllerLoad> known_loads() const;

 private:
  void forget_old(WallTime now);

  std::map<std::string, scheduler::ControllerLoad> loads_;
};

}  // namespace gpulet::agent
