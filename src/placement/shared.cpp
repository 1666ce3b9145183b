#include "placement/shared.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>

namespace gpulet::placement {

namespace {

// "<uuid>" of "<uuid>::<n>".
std::string_view unit_name(const DeviceId& id) {
  const std::string_view text = id.str();
  return text.substr(0, text.find("::"));
}

// What one GPU, or one MIG device, is like in the middle of a choice.
struct Load {
  std::size_t allocated = 0;
  std::size_t picked = 0;
  std::size_t free = 0;
};

// Whether `a` is to be taken from before `b`, and whether neither is.
int compare(const Load& a, const Load& b, SharedPolicy policy) {
  if (a.allocated != b.allocated) {
    const bool first =
        policy == SharedPolicy::kDistributed ? a.allocated < b.allocated : a.allocated > b.allocated;
    return first ? -1 : 1;
  }
  if (a.picked != b.picked) return a.picked < b.picked ? -1 : 1;
  return 0;
}

void take(Load& load) {
  ++load.allocated;
  ++load.picked;
  --load.free;
}

}  // namespace

SharedGpus::SharedGpus(const topology::Topology& topology, const std::vector<Device>& devices) {
  std::unordered_map<std::size_t, std::uint32_t> gpu_at;
  std::unordered_map<std::string_view, std::uint32_t> unit_at;
  for (const Device& device : devices) {
    const auto [gpu, new_gpu] = gpu_at.try_emplace(device.gpu, static_cast<std::uint32_t>(gpus_.size()));
    if (new_gpu) gpus_.push_back({device.gpu, 0, {}});
    const auto [unit, new_unit] =
        unit_at.try_emplace(unit_name(device.id), static_cast<std::uint32_t>(units_.size()));
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

Answer SharedGpus::choose(const Ask& ask, SharedPolicy policy) const {
  std::vector<Load> gpus(gpus_.size());
  std::vector<Load> units(units_.size());
  std::vector<std::vector<Position>> free(units_.size());  // last to be given first
  for (std::size_t i = 0; i < gpus_.size(); ++i) gpus[i].allocated = gpus_[i].total;
  for (std::size_t i = 0; i < units_.size(); ++i) units[i].allocated = units_[i].total;
  for (std::size_t i = ask.available.size(), left = ask.required.size(); i-- > 0;) {
    const Position position = ask.available[i];
    const std::uint32_t unit = unit_of_[position];
    Load& of_unit = units[unit];
    Load& of_gpu = gpus[units_[unit].gpu];
    if (left > 0 && ask.required[left - 1] == position) {  // allocated in all but name
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

  std::vector<std::int64_t> links(gpus_.size(), 0);  // of each GPU to those picked from
  const auto link = [&](std::size_t gpu) {
    for (std::size_t i = 0; i < gpus_.size(); ++i) links[i] += links_.weight(gpu, i);
  };
  for (std::size_t i = 0; i < gpus_.size(); ++i) {
    if (gpus[i].picked > 0) link(i);
  }

  Answer answer{ask.required, 0, 0};
  while (answer.chosen.size() < ask.size) {
    std::size_t gpu = gpus_.size();
    for (std::size_t i = 0; i < gpus_.size(); ++i) {
      if (gpus[i].free == 0) continue;
      const int order = gpu == gpus_.size() ? -1 : compare(gpus[i], gpus[gpu], policy);
      if (order < 0 || (order == 0 && links[i] > links[gpu])) gpu = i;
    }
    std::uint32_t unit = 0;
    bool found = false;
    for (const std::uint32_t candidate : gpus_[gpu].units) {
      if (units[candidate].free == 0 || (found && compare(units[candidate], units[unit], policy) >= 0))
        continue;
      unit = candidate;
      found = true;
    }
    if (gpus[gpu].picked == 0) link(gpu);
    take(gpus[gpu]);
    take(units[unit]);
    answer.chosen.push_back(free[unit].back());
    free[unit].pop_back();
  }
  std::sort(answer.chosen.begin(), answer.chosen.end());
  for (std::size_t a = 0; a < gpus_.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      answer.score += static_cast<std::int64_t>(gpus[a].picked * gpus[b].picked) * links_.weight(a, b);
    }
  }
  return answer;
}

std::vector<SharedGpus::Use> SharedGpus::uses(const Ask& ask, const std::vector<Position>& chosen) const {
  std::vector<Use> uses;
  for (const Gpu& gpu : gpus_) uses.push_back({gpu.index, 0, gpu.total, gpu.total});
  for (const Position position : ask.available) --uses[units_[unit_of_[position]].gpu].in_use;
  for (const Position position : chosen) ++uses[units_[unit_of_[position]].gpu].taken;
  std::erase_if(uses, [](const Use& use) { return use.taken == 0; });
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.gpu < b.gpu; });
  return uses;
}

}  // namespace gpulet::placement
