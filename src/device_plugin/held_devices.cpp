#include "device_plugin/held_devices.h"

#include <algorithm>

namespace gpulet::device_plugin {
namespace {

// Without a List nothing else removes devices that are gone, as MIG devices of old layouts.
constexpr std::size_t kMaxAllocated = 65'536;

}  // namespace

void HeldDevices::add_allocation(const ResourceName& resource, std::span<const DeviceId> ids, Time now) {
  if (allocated_.size() > kMaxAllocated) {
    allocated_.clear();
    has_list_ = false;
  }
  for (const auto& id : ids) allocated_[{resource, id}] = {now, false};
}

void HeldDevices::replace_list(const std::vector<ContainerDevices>& containers, Time asked,
                               Time complete_until) {
  const bool is_newest = !has_list_ || asked >= asked_;
  has_list_ = true;
  if (is_newest) {
    asked_ = asked;
    listed_.clear();
    for (const auto& container : containers) {
      for (const auto& [resource, ids] : container.devices) {
        for (const auto& id : ids) listed_.emplace(resource, id);
      }
    }
  }
  // A newer List shows those too, or their containers have ended.
  std::erase_if(allocated_, [&](const auto& one) { return one.second.time < complete_until; });
  for (auto& [device, allocation] : allocated_) {
    if (is_newest && allocation.time < asked && listed_.contains(device)) allocation.is_shown = true;
  }
}

bool HeldDevices::shows_allocations() const {
  return has_list_ && asked_ >= started_ + kAllocationRecorded &&
         std::ranges::all_of(allocated_, [](const auto& one) { return one.second.is_shown; });
}

bool HeldDevices::may_be_held(const ResourceName& resource, std::span<const DeviceId> ids) const {
  if (!has_list_) return !ids.empty();
  return std::ranges::any_of(ids, [&](const DeviceId& id) {
    return listed_.contains({resource, id}) || allocated_.contains({resource, id});
  });
}

std::map<DeviceId, std::string> HeldDevices::last_known(const ResourceName& resource) const {
  std::map<DeviceId, std::string> known;
  const auto add = [&](const Device& device) {
    if (device.first == resource) known.emplace(device.second, "unknown");
  };
  for (const auto& device : listed_) add(device);
  for (const auto& [device, allocation] : allocated_) add(device);
  return known;
}

}  // namespace gpulet::device_plugin
