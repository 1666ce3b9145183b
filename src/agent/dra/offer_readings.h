// What is left of a GPU on either side (partition/offer_switch.h), from what the kubelet and the API server
// return. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "config/config.h"
#include "device_plugin/allocation.h"
#include "device_plugin/pod_resources.h"
#include "dra/claim_record.h"
#include "dra/device_pool.h"
#include "inventory/snapshot.h"
#include "partition/offer_switch.h"

namespace gpulet::agent {

// "Pod default/a", by GPU: the Pods that hold one, a part or a share of it by the device plugin.
std::map<DeviceUuid, std::string> plugin_holders(const std::vector<ContainerDevices>& containers,
                                                 const inventory::Snapshot& snapshot);

// "claim default/a", by GPU. An admin's access holds nothing.
std::map<DeviceUuid, std::string> claim_holders(const std::map<std::string, dra::ClaimRecord>& records,
                                                const inventory::Snapshot& snapshot);

// By GPU, why its claims are not prepared.
std::map<DeviceUuid, std::string> withheld_gpus(const dra::DevicePool& pool,
                                                const partition::GpuOffers& offers);

// `withdrawn` (reasons by GPU), and the display adapters of the node.
std::map<DeviceUuid, std::string> with_display_adapters(std::map<DeviceUuid, std::string> withdrawn,
                                                        const inventory::Snapshot& snapshot);

// By GPU, how claims share it by its partition rule. One that a claim holds whole is not shared.
std::map<DeviceUuid, config::ConsumableShares> shared_gpus(
    const inventory::Snapshot& snapshot, const config::Config& config,
    const std::map<std::string, std::string>& labels, const std::map<std::string, dra::ClaimRecord>& records);

// By GPU in MIG mode whose rule makes MIG devices for claims: what the rule allows, and what is made for the
// claims of `records`. Its profiles are not known yet.
std::map<DeviceUuid, dra::DynamicGpu> dynamic_gpus(const inventory::Snapshot& snapshot,
                                                   const config::Config& config,
                                                   const std::map<std::string, std::string>& labels,
                                                   const std::map<std::string, dra::ClaimRecord>& records);

// The GPUs of the devices that the kubelet lists as allocatable.
std::set<DeviceUuid> allocatable_gpus(const device_plugin::DevicesByResource& devices,
                                      const inventory::Snapshot& snapshot);

// Healthy devices by resource name.
using ExpectedAllocatable = std::map<std::string, std::size_t>;
// Of the resources that are offered, and 0 for the other names that the config gives to GPUs.
ExpectedAllocatable expected_allocatable(const std::vector<device_plugin::OfferPtr>& offers,
                                         const inventory::Snapshot& snapshot, const config::Config& config,
                                         const std::map<std::string, std::string>& labels);

// "the Node shows nvidia.com/gpu: 8, expected 4" where the Node (JSON) has more allocatable than is offered;
// empty if it has not. A text that is not a Node is behind too.
std::string node_behind(std::string_view node, const ExpectedAllocatable& expected);

}  // namespace gpulet::agent
