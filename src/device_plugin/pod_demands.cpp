#include "device_plugin/pod_demands.h"

#include <algorithm>

namespace gpulet::device_plugin {
namespace {

bool is_same_demand(const PodDemand& a, const PodDemand& b) {
  return a.pod_uid == b.pod_uid && a.container == b.container && a.resource == b.resource;
}

// The first device that the demand does not accept; null: none.
const DeviceId* find_unaccepted(const PodDemand& demand, std::span<const DeviceId> ids) {
  if (!demand.accepted) return nullptr;
  const auto found =
      std::ranges::find_if(ids, [&](const auto& id) { return !demand.accepted->contains(id); });
  return found == ids.end() ? nullptr : &*found;
}

}  // namespace

void DemandBoard::set_demands(std::vector<PodDemand> demands) {
  std::vector<Entry> entries;
  for (auto& demand : demands) entries.push_back({std::move(demand)});
  const std::lock_guard lock(mutex_);
  for (auto& entry : entries) {
    const auto before = std::ranges::find_if(
        entries_, [&](const Entry& one) { return is_same_demand(one.demand, entry.demand); });
    entry.is_met = before != entries_.end() && before->is_met;
  }
  entries_ = std::move(entries);
}

std::optional<std::set<DeviceId>> DemandBoard::accepted_devices(const ResourceName& resource,
                                                                std::size_t count) const {
  const std::lock_guard lock(mutex_);
  const auto first = std::ranges::find_if(entries_, [&](const Entry& entry) {
    return !entry.is_met && entry.demand.resource == resource && entry.demand.count == count;
  });
  return first == entries_.end() ? std::nullopt : first->demand.accepted;
}

Status DemandBoard::meet_demand(const ResourceName& resource, std::span<const DeviceId> ids) {
  const std::lock_guard lock(mutex_);
  const PodDemand* first = nullptr;
  for (auto& [demand, is_met] : entries_) {
    if (is_met || demand.resource != resource || demand.count != ids.size()) continue;
    if (find_unaccepted(demand, ids) == nullptr) {
      is_met = true;
      return {};
    }
    if (first == nullptr) first = &demand;
  }
  if (first == nullptr) return {};
  return fail(Code::kFailedPrecondition, "the Pod " + first->pod + " does not accept " +
                                             find_unaccepted(*first, ids)->str() + ": " + first->requirement);
}

}  // namespace gpulet::device_plugin
