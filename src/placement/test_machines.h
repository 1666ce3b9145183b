// Machines for tests and benchmarks: topologies as values, with the links of real boards.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "placement/chooser.h"

namespace gpulet::placement::machines {

using inventory::PcieDistance;
using topology::Pair;
using topology::Topology;

inline Topology blank(std::size_t gpus) {
  Topology topology;
  topology.size = gpus;
  topology.pairs.resize(gpus * gpus);
  topology.numa_nodes.resize(gpus);
  topology.fabrics.resize(gpus);
  return topology;
}

inline void set_pair(Topology& topology, std::size_t a, std::size_t b, const Pair& pair) {
  topology.pairs[a * topology.size + b] = pair;
  topology.pairs[b * topology.size + a] = pair;
}

// PCIe: pairs of neighbours below one switch, `per_node` GPUs a NUMA node.
inline Topology pcie(std::size_t gpus, std::size_t per_node, bool switches) {
  Topology topology = blank(gpus);
  for (std::size_t a = 0; a < gpus; ++a) {
    topology.numa_nodes[a] = static_cast<int>(a / per_node);
    for (std::size_t b = 0; b < a; ++b) {
      PcieDistance distance = a / per_node == b / per_node ? PcieDistance::kNode : PcieDistance::kSystem;
      if (switches && a / 2 == b / 2) distance = PcieDistance::kSingle;
      set_pair(topology, a, b, {distance, 0, 0});
    }
  }
  return topology;
}

// Every GPU linked to every other through NVSwitch: HGX (8, no PCIe switches shared), DGX-2 (16).
inline Topology nvswitch(std::size_t gpus, unsigned links, bool switches = false) {
  Topology topology = pcie(gpus, gpus / 2, switches);
  for (Pair& pair : topology.pairs) pair.switched_nvlinks = links;
  return topology;
}

// The hybrid cube mesh of DGX-1 (V100). Source: NVIDIA DGX-1 system architecture white paper; nvidia-smi topo
// -m.
inline Topology dgx1() {
  Topology topology = pcie(8, 4, true);
  struct Link {
    std::size_t a, b;
    unsigned count;
  };
  constexpr Link kLinks[] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1},
                             {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1},
                             {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};
  for (const Link& link : kLinks) {
    Pair pair = topology.pair_between(link.a, link.b);
    pair.direct_nvlinks = link.count;
    set_pair(topology, link.a, link.b, pair);
  }
  return topology;
}

// Two cube meshes on four NUMA nodes, and every link count of its own kind: no twins.
inline Topology direct16() {
  Topology topology = pcie(16, 4, true);
  const Topology board = dgx1();
  for (std::size_t a = 0; a < 16; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      Pair pair = topology.pair_between(a, b);
      if (a / 8 == b / 8) pair.direct_nvlinks = board.pair_between(a % 8, b % 8).direct_nvlinks;
      if (a == b + 8) pair.direct_nvlinks = 1 + static_cast<unsigned>(b % 2);
      set_pair(topology, a, b, pair);
    }
  }
  return topology;
}

// Random pairs out of few kinds (`kinds` small: many equal totals and twins) on random NUMA nodes.
inline Topology random(std::size_t gpus, unsigned kinds, std::mt19937& random) {
  Topology topology = blank(gpus);
  for (std::size_t a = 0; a < gpus; ++a) {
    const int node = static_cast<int>(random() % 4);
    if (node < 3) topology.numa_nodes[a] = node;
    for (std::size_t b = 0; b < a; ++b) {
      const unsigned kind = static_cast<unsigned>(random() % kinds);
      set_pair(topology, a, b, {static_cast<PcieDistance>(1 + kind % 6), kind / 6, kind / 24});
    }
  }
  return topology;
}

// As `from`, but GPU i of the result is one of its GPUs at random: nothing holds only because of the order.
inline Topology shuffled(const Topology& from, std::mt19937& random) {
  std::vector<std::size_t> order(from.size);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  Topology topology = blank(from.size);
  for (std::size_t a = 0; a < from.size; ++a) {
    topology.numa_nodes[a] = from.numa_nodes[order[a]];
    for (std::size_t b = 0; b < a; ++b) set_pair(topology, a, b, from.pair_between(order[a], order[b]));
  }
  return topology;
}

inline std::string gpu_id(std::size_t gpu) {
  return "GPU-00000000-0000-4000-8000-" + std::to_string(100000000000 + gpu);
}

// One whole device per GPU, or `replicas` shares of each ("<uuid>::<n>").
inline std::vector<Device> devices(std::size_t gpus, std::size_t replicas = 0) {
  std::vector<Device> list;
  for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
    if (replicas == 0) list.push_back({DeviceId(gpu_id(gpu)), gpu, false});
    for (std::size_t n = 0; n < replicas; ++n) {
      list.push_back({DeviceId(gpu_id(gpu) + "::" + std::to_string(n)), gpu, true});
    }
  }
  return list;
}

inline std::vector<DeviceId> ids(const std::vector<Device>& devices) {
  std::vector<DeviceId> list;
  for (const Device& device : devices) list.push_back(device.id);
  return list;
}

}  // namespace gpulet::placement::machines
