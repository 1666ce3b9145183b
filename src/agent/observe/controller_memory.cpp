#include "agent/observe/controller_memory.h"

#include <algorithm>
#include <array>

namespace gpulet::agent {
namespace {

using scheduler::ControllerLoad;
using scheduler::kDayParts;

struct WeightedSum {
  std::array<std::uint64_t, kDayParts> busy{};
  std::uint64_t memory = 0, weight = 0;
  std::uint32_t hours = 0;  // the most of a Pod

  void add_pod(const ControllerMemory::PodLoad& pod) {
    const std::uint64_t by = std::min(pod.hours, scheduler::kKnownHours);
    for (std::size_t part = 0; part < kDayParts; ++part) busy[part] += by * pod.curve.busy[part];
    memory += by * pod.curve.memory;
    weight += by;
    hours = std::max(hours, pod.hours);
  }
  scheduler::LoadCurve mean_curve() const {
    const auto mean = [&](std::uint64_t sum) {
      return static_cast<std::uint8_t>((sum + weight / 2) / weight);
    };
    scheduler::LoadCurve curve;
    for (std::size_t part = 0; part < kDayParts; ++part) curve.busy[part] = mean(busy[part]);
    curve.memory = mean(memory);
    return curve;
  }
};

std::int64_t hour_of(WallTime now) {
  return std::chrono::floor<std::chrono::hours>(now.time_since_epoch()).count();
}

}  // namespace

void ControllerMemory::learn_loads(const std::vector<PodLoad>& pods, WallTime now) {
  std::map<std::string, WeightedSum> sums;
  for (const auto& pod : pods) {
    if (pod.hours != 0) sums[pod.controller].add_pod(pod);
  }
  for (const auto& [controller, sum] : sums) {
    loads_[controller] = {
        .controller = controller, .curve = sum.mean_curve(), .hours = sum.hours, .last_hour = hour_of(now)};
  }
  forget_old(now);
}

void ControllerMemory::add_loads(const std::vector<ControllerLoad>& loads, WallTime now) {
  for (const auto& load : loads) {
    const auto [known, is_new] = loads_.try_emplace(load.controller, load);
    if (is_new) continue;
    const auto& here = known->second;
    const bool stays = here.hours >= scheduler::kKnownHours && here.last_hour >= load.last_hour;
    if (!stays && load.is_better_than(here)) known->second = load;
  }
  forget_old(now);
}

void ControllerMemory::forget_old(WallTime now) {
  const std::int64_t oldest = hour_of(now) - kControllerMemory.count();
  std::erase_if(loads_, [&](const auto& one) { return one.second.last_hour < oldest; });
  while (loads_.size() > scheduler::kMaxControllers) {
    loads_.erase(std::ranges::min_element(
        loads_, {}, [](const auto& one) { return std::pair(one.second.last_hour, one.second.hours); }));
  }
}

const ControllerLoad* ControllerMemory::find_load(const std::string& controller) const {
  const auto found = loads_.find(controller);
  if (found == loads_.end() || found->second.hours < scheduler::kKnownHours) return nullptr;
  return &found->second;
}

std::vector<ControllerLoad> ControllerMemory::known_loads() const {
  std::vector<ControllerLoad> known;
  for (const auto& [controller, load] : loads_) {
    if (load.hours >= scheduler::kKnownHours) known.push_back(load);
  }
  return known;
}

}  // namespace gpulet::agent
