// What the node publishes of itself for a scheduler (scheduler/gpu_node.h), out of what the agent knows.
// Pure.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "agent/offers.h"
#include "health/view.h"
#include "inventory/snapshot.h"
#include "kubelet/pod_resources.h"
#include "scheduler/gpu_node.h"

namespace gpulet::agent {

// `holders`: as the kubelet says; devices that are in no offer are let be. `view` may be null: nothing is
// known of health beside what the offers say. `loads`: scheduler::encode() of what is expected of each GPU;
// of others nothing is.
scheduler::GpuNode published_node(const inventory::Snapshot& snapshot,
                                  std::span<const kubelet::OfferPtr> offers, const config::Config& config,
                                  const health::View* view,
                                  std::span<const kubelet::ContainerDevices> holders,
                                  const std::map<DeviceUuid, std::string>& loads);

}  // namespace gpulet::agent
