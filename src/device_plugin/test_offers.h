// Offers for this library's tests and its fuzz target: eight V100s in a cube mesh on two NUMA nodes, or
// shares of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device_plugin/allocation.h"
#include "placement/test_machines.h"

namespace gpulet::device_plugin::offers {

inline std::string gpu_uuid(std::size_t gpu) {
  return "GPU-00000000-0000-4000-8000-00000000000" + std::to_string(gpu);
}
inline DeviceId gpu_id(std::size_t gpu) { return DeviceId(gpu_uuid(gpu)); }
inline DeviceId share_id(std::size_t gpu, unsigned replica) {
  return DeviceId(gpu_uuid(gpu) + "::" + std::to_string(replica));
}

inline AllocationRules rules() {
  AllocationRules rules;
  rules.strategies = {config::DeviceListStrategy::kEnvvar};
  rules.cdi_annotation_prefix = "cdi.k8s.io/";
  rules.control_nodes = {"/dev/nvidiactl", "/dev/nvidia-uvm"};
  return rules;
}

// `replicas` above 1: that many shares of each GPU.
inline Offer make_offer(const std::string& name = "nvidia.com/gpu", std::size_t gpus = 8,
                        unsigned replicas = 1) {
  Offer offer;
  offer.resource.name = ResourceName(name);
  offer.resource.replicas = replicas;
  if (replicas > 1) offer.resource.sharing = config::SharingStrategy::kTimeSlicing;
  std::vector<placement::Device> devices;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    offer.gpus.emplace_back(gpu_uuid(gpu));
    for (unsigned replica = 0; replica < replicas; ++replica) {
      partition::Device device;
      device.id = replicas > 1 ? share_id(gpu, replica) : gpu_id(gpu);
      device.gpu = gpu;
      if (replicas > 1) device.replica = replica;
      device.numa_node = static_cast<int>(gpu / 4);
      devices.push_back({.id = device.id,
                         .gpu = gpu,
                         .shared = device.is_shared(),
                         .memory_percent = replicas > 1 ? placement::equal_share_percent(replicas) : 0});
      offer.resource.devices.push_back(std::move(device));
      offer.access.push_back({gpu_uuid(gpu), std::to_string(gpu), {"/dev/nvidia" + std::to_string(gpu)}});
    }
  }
  offer.chooser = placement::Chooser::build_chooser(placement::machines::dgx1(), std::move(devices), {});
  offer.rules = rules();
  return offer;
}

inline OfferPtr share_offer(Offer offer) { return std::make_shared<const Offer>(std::move(offer)); }

inline Offer with_unhealthy(Offer offer, std::size_t index, std::string reason = "XID 79") {
  offer.resource.devices[index].health = {false, std::move(reason)};
  return offer;
}

}  // namespace gpulet::device_plugin::offers
