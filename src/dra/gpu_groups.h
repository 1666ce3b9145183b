// Which GPUs of a node belong together, for claims: as attributes that a claim's matchAttribute compares, and
// as the order of the devices, of which the scheduler takes the first that fit. What is best is decided by
// placement/, as for the device plugin.
//
// Source: resource.k8s.io/v1, DeviceConstraint (Kubernetes 1.36): devices without the attribute never match.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/types.h"
#include "dra/device_pool.h"
#include "inventory/snapshot.h"
#include "topology/topology.h"

namespace gpulet::dra {

inline constexpr const char* kNvLinkIslandAttribute = "gpulet.io/nvlinkIsland";
inline constexpr const char* kBestPairAttribute = "gpulet.io/bestPair";
inline constexpr const char* kBestQuadAttribute = "gpulet.io/bestQuad";
inline constexpr std::array kGroupAttributes = {kNvLinkIslandAttribute, kBestPairAttribute,
                                                kBestQuadAttribute};

struct GroupedGpu {
  DeviceUuid uuid;
  inventory::PciAddress pci;
  std::size_t gpu = 0;  // index in the Topology
  friend bool operator==(const GroupedGpu&, const GroupedGpu&) = default;
};

struct GpuGroups {
  // The three attributes by UUID. A value is the lowest PCI address of the group, "0000:1b:00.0".
  std::map<DeviceUuid, std::map<std::string, std::string>> attributes = {};
  // All GPUs: the best sets of 8, in each the best of 4, in each the best of 2 are neighbours.
  // Whatever is in use: an order that follows use does not pay (bench/order_bench.py).
  std::vector<DeviceUuid> order = {};
  friend bool operator==(const GpuGroups&, const GpuGroups&) = default;
};

// - nvlinkIsland: at least two GPUs that reach one another over NVLinks, direct or through NVSwitch, without
//   other GPUs than those of the island.
// - bestPair, bestQuad: the sets of the partition into sets of that size with the greatest total score. A GPU
//   that the partition leaves over has no value, nor has a set of which a pair's distance is unknown.
// Shapes: `gpus` have different UUIDs, PCI addresses and indices below topology.size. Independent of their
// order and indices. Cost: one Chooser (placement/chooser.h), then a choice for each set. Pure.
GpuGroups make_gpu_groups(const topology::Topology& topology, std::vector<GroupedGpu> gpus);

// Gives the groups to the devices of a pool, and keeps them until the GPUs or their topology change, because
// a pool is made anew for every change of health.
class DeviceArranger {
 public:
  // Adds the attributes to the whole GPUs of `pool`, which was made from `snapshot`, and puts those GPUs
  // first, in the groups' order. The other devices keep their order: MIG devices, and GPUs whose links the
  // driver has never returned, which belong to no group.
  void arrange_devices(const inventory::Snapshot& snapshot, DevicePool& pool);

 private:
  topology::Topology topology_;
  std::vector<GroupedGpu> gpus_;
  GpuGroups groups_;
};

}  // namespace gpulet::dra
