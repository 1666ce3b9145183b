#include "mig/on_demand.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "mig/plan.h"

namespace gpulet::mig {
namespace {

using DeviceCounts = std::map<std::string, unsigned>;

// Devices of instances without holders, by name.
DeviceCounts idle_counts(const State& state) {
  DeviceCounts idle;
  for (const auto& instance : state.instances) {
    const auto* profile = find_profile(state, instance.profile);
    if (profile == nullptr || !instance.holders.empty()) continue;
    for (const auto& compute : instance.compute) {
      if (const auto slices = compute_slices(*profile, compute.profile))
        ++idle[device_name(*profile, *slices)];
    }
  }
  return idle;
}

// Whether the GPU can get the layout with everything in use kept.
bool is_possible(const State& state, const Layout& layout) {
  const auto plan = make_plan(state, layout);
  return plan && !plan->is_blocked();
}

bool waits_for_mode(const State& state) { return state.pending && *state.pending != state.enabled; }

unsigned demanded_count(std::span<const DeviceDemand> demands, std::string_view profile) {
  unsigned count = 0;
  for (const auto& demand : demands) {
    if (demand.profile == profile) count = std::max(count, demand.count);
  }
  return count;
}

unsigned compute_slices_of(const std::string& device) {
  const auto name = parse_profile_name(device);
  return name ? name->compute : 1;
}

// The layout with `more` devices of the profile and without `removed`.
Layout changed_layout(const State& state, const std::string& profile, unsigned more,
                      const DeviceCounts& removed) {
  Layout layout = current_layout(state);
  for (const auto& [device, count] : removed) {
    auto& present = layout.devices[device];
    present -= std::min(present, count);
    if (present == 0) layout.devices.erase(device);
  }
  layout.devices[profile] += more;
  return layout;
}

// All ways to choose of the removable devices, those that remove the least first: by number, then by slices.
std::vector<DeviceCounts> removal_choices(const DeviceCounts& removable) {
  std::vector<DeviceCounts> choices = {{}};
  for (const auto& [device, most] : removable) {
    const std::size_t so_far = choices.size();
    for (unsigned count = 1; count <= most; ++count) {
      for (std::size_t i = 0; i < so_far; ++i) {
        choices.push_back(choices[i]);
        choices.back()[device] = count;
      }
    }
  }
  const auto cost = [](const DeviceCounts& removed) {
    std::pair<unsigned, unsigned> sum;
    for (const auto& [device, count] : removed) {
      sum.first += count;
      sum.second += count * compute_slices_of(device);
    }
    return sum;
  };
  std::ranges::stable_sort(choices, {}, cost);
  return choices;
}

struct Cut {
  unsigned more = 0;
  DeviceCounts removed;
  Layout layout;
};

// The most new devices of the profile, at most `most`, that fit if everything in `removable` goes.
unsigned most_new_devices(const State& state, const std::string& profile, unsigned most,
                          const DeviceCounts& removable) {
  const auto* found = find_profile(state, profile);
  if (found == nullptr) return 0;
  for (unsigned more = std::min(most, found->max_instances); more > 0; --more) {
    if (is_possible(state, changed_layout(state, profile, more, removable))) return more;
  }
  return 0;
}

// What fits with the fewest idle devices given up; nullopt if none does.
std::optional<Cut> find_cut(const State& state, const std::string& profile, unsigned most,
                            const DeviceCounts& removable) {
  const unsigned more = most_new_devices(state, profile, most, removable);
  if (more == 0) return std::nullopt;
  for (auto& removed : removal_choices(removable)) {
    Layout layout = changed_layout(state, profile, more, removed);
    if (is_possible(state, layout)) return Cut{more, std::move(removed), std::move(layout)};
  }
  return std::nullopt;
}

std::string in_use_text(const State& state) {
  Layout used{true, {}};
  for (const auto& instance : state.instances) {
    const auto* profile = find_profile(state, instance.profile);
    if (profile != nullptr && !instance.holders.empty()) ++used.devices[profile->name];
  }
  return used.devices.empty() ? "its profiles do not allow it" : layout_text(used) + " in use";
}

// One decision: what is idle, what of it others count on, and what is changed so far.
class Decision {
 public:
  Decision(std::span<const OnDemandGpu> gpus, std::span<const DeviceDemand> demands,
           const OnDemandLimits& limits, Time now)
      : gpus_(gpus), demands_(demands), limits_(limits), now_(now), changed_(gpus.size(), false) {
    for (const auto& gpu : gpus) {
      if (is_cut_on_demand(gpu)) ++cut_gpus_;
      if (!gpu.usable) continue;
      for (const auto& [device, count] : idle_counts(gpu.state)) idle_[device] += count;
    }
  }

  void serve_demand(const DeviceDemand& demand) {
    while (idle_of(demand.profile) < demand.count) {
      if (!cut_one(demand.profile, demand.count - idle_of(demand.profile))) return;
    }
  }

  void return_unneeded() {
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      const auto& gpu = gpus_[i];
      if (changed_[i] || !is_cut_on_demand(gpu) || is_needed(gpu, demands_)) continue;
      if (now_ - gpu.needed_at < limits_.idle || !is_interval_over(gpu)) continue;
      if (is_possible(gpu.state, gpu.configured))
        changes_.push_back({i, gpu.configured, OnDemandReason::kReturn, ""});
    }
  }

  // Cuts as many as possible, without looking for the best way.
  DevicePotential find_potential(const std::string& profile) {
    DevicePotential potential{idle_of(profile), ""};
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      const auto& gpu = gpus_[i];
      std::string why = refusal(i);
      if (why.empty()) {
        const unsigned more = most_new_devices(gpu.state, profile, kMaxMemorySlices, removable(gpu, profile));
        potential.count += more;
        if (more > 0 && !is_cut_on_demand(gpu)) ++cut_gpus_;
        if (more == 0) why = in_use_text(gpu.state);
      }
      if (!why.empty())
        potential.why_no_more += (potential.why_no_more.empty() ? "GPU " : "; GPU ") +
                                 std::to_string(gpu.state.index) + ": " + why;
    }
    return potential;
  }

  std::vector<OnDemandChange> take_changes() && { return std::move(changes_); }

 private:
  unsigned idle_of(const std::string& device) const {
    const auto found = idle_.find(device);
    return found == idle_.end() ? 0 : found->second;
  }
  bool is_interval_over(const OnDemandGpu& gpu) const {
    return !gpu.changed_at || now_ - *gpu.changed_at >= limits_.min_interval;
  }

  // Why the GPU is not cut; empty if it may be.
  std::string refusal(std::size_t index) const {
    const auto& gpu = gpus_[index];
    if (!gpu.usable) return "not available";
    if (!gpu.state.enabled || waits_for_mode(gpu.state)) return "MIG is off";
    if (changed_[index] || !is_interval_over(gpu)) return "changed less than minInterval ago";
    if (!is_cut_on_demand(gpu) && cut_gpus_ >= limits_.max_gpus) return "maxGpus are cut already";
    return "";
  }

  // Idle devices of the GPU that no demand counts on.
  DeviceCounts removable(const OnDemandGpu& gpu, const std::string& profile) const {
    DeviceCounts all;
    for (const auto& [device, count] : idle_counts(gpu.state)) {
      const unsigned wanted = demanded_count(demands_, device), idle = idle_of(device);
      const unsigned surplus = idle > wanted ? idle - wanted : 0;
      if (device != profile && surplus > 0) all[device] = std::min(count, surplus);
    }
    return all;
  }

  // Cuts the GPU that gives the most, then gives up the least, then is cut already.
  bool cut_one(const std::string& profile, unsigned missing) {
    std::optional<std::pair<std::size_t, Cut>> best;
    const auto rank = [&](std::size_t index, const Cut& cut) {
      unsigned removed = 0;
      for (const auto& [device, count] : cut.removed) removed += count;
      return std::tuple(kMaxMemorySlices - cut.more, removed, !is_cut_on_demand(gpus_[index]), index);
    };
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      if (!refusal(i).empty()) continue;
      auto cut = find_cut(gpus_[i].state, profile, missing, removable(gpus_[i], profile));
      if (cut && (!best || rank(i, *cut) < rank(best->first, best->second))) best = {i, std::move(*cut)};
    }
    if (!best) return false;
    const auto& [index, cut] = *best;
    changed_[index] = true;
    if (!is_cut_on_demand(gpus_[index])) ++cut_gpus_;
    idle_[profile] += cut.more;
    for (const auto& [device, count] : cut.removed) idle_[device] -= count;
    changes_.push_back({index, cut.layout, OnDemandReason::kDemand, profile});
    return true;
  }

  const std::span<const OnDemandGpu> gpus_;
  const std::span<const DeviceDemand> demands_;
  const OnDemandLimits& limits_;
  const Time now_;
  std::vector<bool> changed_;
  unsigned cut_gpus_ = 0;
  DeviceCounts idle_;
  std::vector<OnDemandChange> changes_;
};

}  // namespace

bool is_cut_on_demand(const OnDemandGpu& gpu) {
  return gpu.state.enabled && !gpu.state.instances.empty() && current_layout(gpu.state) != gpu.configured;
}

unsigned idle_devices(const State& state, std::string_view profile) {
  const auto idle = idle_counts(state);
  const auto found = idle.find(std::string(profile));
  return found == idle.end() ? 0 : found->second;
}

bool is_needed(const OnDemandGpu& gpu, std::span<const DeviceDemand> demands) {
  if (!is_cut_on_demand(gpu)) return false;
  const auto layout = current_layout(gpu.state);
  for (const auto& demand : demands) {
    if (layout.devices.contains(demand.profile)) return true;
  }
  return !is_possible(gpu.state, gpu.configured);
}

std::vector<OnDemandChange> decide_changes(std::span<const OnDemandGpu> gpus,
                                           std::span<const DeviceDemand> demands,
                                           const OnDemandLimits& limits, Time now) {
  Decision decision(gpus, demands, limits, now);
  for (const auto& demand : demands) decision.serve_demand(demand);
  decision.return_unneeded();
  return std::move(decision).take_changes();
}

DevicePotential device_potential(std::span<const OnDemandGpu> gpus, std::string_view profile,
                                 std::span<const DeviceDemand> demands, const OnDemandLimits& limits,
                                 Time now) {
  return Decision(gpus, demands, limits, now).find_potential(std::string(profile));
}

}  // namespace gpulet::mig
