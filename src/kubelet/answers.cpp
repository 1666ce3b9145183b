#include "kubelet/answers.h"

#include <set>

#include "proto/deviceplugin_v1beta1.pb.h"

namespace gpulet::kubelet {
namespace {

template <class Names>
std::vector<DeviceId> ids_of(const Names& names) {
  std::vector<DeviceId> ids;
  ids.reserve(static_cast<std::size_t>(names.size()));
  for (const auto& name : names) ids.emplace_back(name);
  return ids;
}

Status check_containers(const Offer& offer, int containers) {
  if (containers <= kMaxContainers) return {};
  return fail(Code::kInvalidArgument, "invalid request for \"" + offer.resource.name.str() + "\": " +
                                          std::to_string(containers) + " containers, at most " +
                                          std::to_string(kMaxContainers));
}

void render(const ContainerAllocation& allocation, v1beta1::ContainerAllocateResponse& response) {
  for (const auto& [key, value] : allocation.envs) (*response.mutable_envs())[key] = value;
  for (const auto& [key, value] : allocation.annotations) (*response.mutable_annotations())[key] = value;
  for (const auto& mount : allocation.mounts) {
    auto& out = *response.add_mounts();
    out.set_host_path(mount.host_path);
    out.set_container_path(mount.container_path);
    out.set_read_only(mount.read_only);
  }
  for (const auto& device : allocation.devices) {
    auto& out = *response.add_devices();
    out.set_host_path(device.host_path);
    out.set_container_path(device.container_path);
    out.set_permissions(device.permissions);
  }
  for (const auto& name : allocation.cdi_devices) response.add_cdi_devices()->set_name(name);
}

}  // namespace

v1beta1::ListAndWatchResponse device_list(const Offer& offer) {
  v1beta1::ListAndWatchResponse list;
  for (const auto& device : offer.resource.devices) {
    auto& out = *list.add_devices();
    out.set_id(device.id.str());
    out.set_health(device.health.healthy ? "Healthy" : "Unhealthy");
    if (device.numa_node && *device.numa_node >= 0) out.mutable_topology()->add_nodes()->set_id(*device.numa_node);
  }
  return list;
}

Status answer(const Offer& offer, const v1beta1::AllocateRequest& request, v1beta1::AllocateResponse& response) {
  GPULET_TRY(check_containers(offer, request.container_requests_size()));
  std::set<std::string> given;
  for (const auto& container : request.container_requests()) {
    const auto ids = ids_of(container.devices_ids());
    GPULET_TRY_ASSIGN(const auto allocation, allocate(offer, ids));
    for (const auto& id : ids) {
      if (given.insert(id.str()).second) continue;
      return fail(Code::kInvalidArgument, "invalid allocation request for \"" + offer.resource.name.str() +
                                              "\": device requested by two containers: " + id.str());
    }
    render(allocation, *response.add_container_responses());
  }
  return {};
}

Status answer(const Offer& offer, const v1beta1::PreferredAllocationRequest& request,
              v1beta1::PreferredAllocationResponse& response, std::int64_t* score) {
  std::int64_t sum = 0;
  GPULET_TRY(check_containers(offer, request.container_requests_size()));
  for (const auto& container : request.container_requests()) {
    if (container.allocation_size() <= 0) {
      return fail(Code::kInvalidArgument, "invalid preferred allocation request for \"" + offer.resource.name.str() +
                                              "\": size " + std::to_string(container.allocation_size()) +
                                              ", must be at least 1");
    }
    const auto available = ids_of(container.available_deviceids());
    const auto required = ids_of(container.must_include_deviceids());
    GPULET_TRY_ASSIGN(const auto choice, preferred(offer, available, required,
                                                   static_cast<std::size_t>(container.allocation_size())));
    auto& out = *response.add_container_responses();
    for (const auto& id : choice.devices) out.add_deviceids(id.str());
    sum += choice.score;
  }
  if (score != nullptr) *score = sum;
  return {};
}

}  // namespace gpulet::kubelet
