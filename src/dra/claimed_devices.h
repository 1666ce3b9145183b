// The devices of claims in what the kubelet's PodResources API lists. It names them as the slices do
// ("gpu-2"); everything else of gpulet knows a device by its UUID.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "device_plugin/pod_resources.h"
#include "inventory/snapshot.h"

namespace gpulet::dra {

// The UUID of the GPU or MIG device that make_device_pool() gives this name, whether or not it is offered;
// nullopt where the node has none. Pure.
std::optional<DeviceUuid> find_device_uuid(std::string_view name, const inventory::Snapshot& snapshot);

// Replaces the names of devices of kDriverName by their UUIDs. A name that the snapshot does not have stays.
void resolve_claimed_devices(const inventory::Snapshot& snapshot, std::vector<ContainerDevices>& containers);

// `inner`, with the devices of claims resolved by what `snapshot` returns at each answer; not resolved where
// that is null. `snapshot` is called in the loop's thread.
std::unique_ptr<device_plugin::PodResources> with_claimed_devices(
    std::unique_ptr<device_plugin::PodResources> inner, std::function<inventory::SnapshotPtr()> snapshot);

}  // namespace gpulet::dra
