#include "device_plugin/met_demands.h"

#include <utility>

#include "proto/deviceplugin_v1beta1.pb.h"

namespace gpulet::device_plugin {

void MetDemands::note_allocation(const ResourceName& resource, const v1beta1::AllocateRequest& request,
                                 const std::vector<PodDemand>& demands) {
  for (const auto& container : request.container_requests()) {
    const auto candidates =
        find_candidates(demands, resource, static_cast<std::size_t>(container.devices_ids_size()));
    if (candidates.size() == 1) met_.insert(key_of(*candidates.front()));
  }
}

std::vector<PodDemand> MetDemands::remove_met(std::vector<PodDemand> demands) {
  std::set<Key> still_there;
  std::erase_if(demands, [&](const PodDemand& demand) {
    const bool is_met = met_.contains(key_of(demand));
    if (is_met) still_there.insert(key_of(demand));
    return is_met;
  });
  met_ = std::move(still_there);
  return demands;
}

std::vector<DeviceId> given_devices(const v1beta1::AllocateRequest& request,
                                    const v1beta1::AllocateResponse&) {
  std::vector<DeviceId> ids;
  for (const auto& container : request.container_requests()) {
    for (const auto& id : container.devices_ids()) ids.emplace_back(id);
  }
  return ids;
}

std::vector<DeviceId> given_devices(const v1beta1::PreferredAllocationRequest&,
                                    const v1beta1::PreferredAllocationResponse& response) {
  std::vector<DeviceId> ids;
  for (const auto& container : response.container_responses()) {
    for (const auto& id : container.deviceids()) ids.emplace_back(id);
  }
  return ids;
}

}  // namespace gpulet::device_plugin
