#include "mig/derive.h"

#include <algorithm>
#include <set>

#include "mig/layout_file.h"
#include "mig/plan.h"

namespace gpulet::mig {
namespace {

// Without attributes: neither "+me" nor "-me".
bool plain(const Profile& profile) { return profile.name.find_first_of("+-") == std::string::npos; }

// The plain profile of that many slices of which most fit: the smallest.
const Profile* smallest(const State& gpu, unsigned slices) {
  const Profile* best = nullptr;
  for (const auto& profile : gpu.profiles) {
    if (!plain(profile) || profile.slices != slices) continue;
    if (best == nullptr || profile.most > best->most) best = &profile;
  }
  return best;
}

std::optional<Layout> balanced(const State& gpu) {
  unsigned slices = 0;
  for (const auto& profile : gpu.profiles) slices = std::max(slices, profile.slices);
  std::vector<std::pair<unsigned, unsigned>> counts;  // slices, how many
  if (slices == 7) counts = {{1, 2}, {2, 1}, {3, 1}};
  if (slices == 4) counts = {{1, 2}, {2, 1}};
  if (counts.empty()) return std::nullopt;
  Layout layout{true, {}};
  for (const auto& [size, count] : counts) {
    const Profile* profile = smallest(gpu, size);
    if (profile == nullptr) return std::nullopt;
    layout.devices[profile->name] = count;
  }
  return layout;
}

bool fits(State gpu, const Layout& layout) {
  gpu.enabled = true;
  gpu.pending.reset();
  gpu.instances.clear();
  return plan(gpu, layout).has_value();
}

}  // namespace

std::vector<NamedLayout> derive(const State& gpu) {
  std::vector<NamedLayout> layouts = {{"all-disabled", {}}};
  if (!gpu.capable) return layouts;
  layouts.push_back({"all-enabled", {true, {}}});
  if (auto layout = balanced(gpu); layout && fits(gpu, *layout)) {
    layouts.push_back({"all-balanced", std::move(*layout)});
  }
  for (const auto& profile : gpu.profiles) {
    std::string name = "all-" + profile.name;
    std::ranges::replace(name, '+', '.');
    // What the driver says of one profile alone need not go with its placements: as many as do.
    for (unsigned count = profile.most; count != 0; --count) {
      Layout layout{true, {{profile.name, count}}};
      if (!fits(gpu, layout)) continue;
      layouts.push_back({std::move(name), std::move(layout)});
      break;
    }
  }
  std::ranges::sort(layouts, {}, &NamedLayout::name);
  return layouts;
}

Result<std::vector<std::optional<Layout>>> derived(std::string_view name, std::span<const State> gpus) {
  std::vector<std::optional<Layout>> result(gpus.size());
  std::set<std::string> names;
  bool found = false;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    for (auto& [own, layout] : derive(gpus[i])) {
      names.insert(own);
      if (own != name) continue;
      result[i] = std::move(layout);
      found = true;
    }
  }
  if (found) return result;
  return fail(unknown_config(name, "the layouts of this node's GPUs", {names.begin(), names.end()}));
}

}  // namespace gpulet::mig
