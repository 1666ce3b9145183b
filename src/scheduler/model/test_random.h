// Random nodes, tasks and mixes for tests and benchmarks, with few distinct values, so that equal ones
// occur.
#pragma once

#include <array>
#include <random>
#include <vector>

#include "scheduler/model/links.h"
#include "scheduler/model/node_state.h"

namespace gpulet::scheduler::randomly {

using Random = std::mt19937_64;

inline unsigned random_below(Random& random, unsigned count) {
  return static_cast<unsigned>(random() % count);
}

inline LoadCurve random_curve(Random& random) {
  LoadCurve made;
  for (std::uint8_t& part : made.busy) part = static_cast<std::uint8_t>(random_below(random, 101));
  made.memory = static_cast<std::uint8_t>(random_below(random, 101));
  return made;
}

// Eight GPUs in two halves, linked only within a half.
inline std::shared_ptr<const NodeLinks> two_quads() {
  static const auto links = [] {
    topology::Topology topology;
    topology.size = 8;
    topology.pairs.resize(64);
    topology.numa_nodes.resize(8);
    topology.fabrics.resize(8);
    for (std::size_t a = 0; a < 8; ++a) {
      for (std::size_t b = 0; b < 8; ++b) {
        if (a == b) continue;
        topology.pairs[a * 8 + b].pcie = inventory::PcieDistance::kSystem;
        if (a / 4 == b / 4) topology.pairs[a * 8 + b].direct_nvlinks = 4;
      }
    }
    return NodeLinks::make_links(std::move(topology));
  }();
  return links;
}

inline NodeState random_node(Random& random) {
  constexpr std::array<std::uint16_t, 6> kShares = {0, 250, 500, 540, 1000, 1000};
  NodeState made;
  if (random_below(random, 4) != 0) {
    made.cpu_milli = 4000 * random_below(random, 17);
    made.memory_mib = 16384 * random_below(random, 17);
  }
  made.model = static_cast<ModelId>(random_below(random, 3));
  made.gpus = static_cast<std::uint8_t>(std::array{1, 2, 4, 8}[random_below(random, 4)]);
  for (std::size_t gpu = 0; gpu < made.gpus; ++gpu)
    made.free[gpu] = kShares[random_below(random, kShares.size())];
  if (random_below(random, 3) == 0) {
    for (std::size_t gpu = 0; gpu < made.gpus; ++gpu) made.load[gpu] = random_curve(random);
  }
  if (made.gpus == 8 && random_below(random, 2) == 0) made.links = two_quads();
  return made;
}

inline Task random_task(Random& random) {
  constexpr std::array<std::uint16_t, 4> kShares = {100, 250, 460, 500};
  Task made;
  made.cpu_milli = 4000 * random_below(random, 5);
  made.memory_mib = 16384 * random_below(random, 5);
  switch (random_below(random, 4)) {
    case 0:
      break;  // no GPU
    case 1:
      made.gpus = static_cast<std::uint16_t>(1 + random_below(random, 2));
      made.gpu_milli = kShares[random_below(random, kShares.size())];
      break;
    default:
      made.gpus = static_cast<std::uint16_t>(std::array{1, 1, 2, 4, 8}[random_below(random, 5)]);
      made.gpu_milli = kWhole;
  }
  if (random_below(random, 3) == 0) made.models.bits = 1 + random_below(random, 7);
  if (random_below(random, 3) == 0) made.load = random_curve(random);
  return made;
}

inline std::vector<Task> random_tasks(Random& random, std::size_t count) {
  std::vector<Task> list;
  for (std::size_t at = 0; at < count; ++at) list.push_back(random_task(random));
  return list;
}

// GPUs with these free shares, and plenty of everything else.
inline NodeState node_with_free(const std::vector<std::uint16_t>& shares) {
  NodeState made;
  made.gpus = static_cast<std::uint8_t>(shares.size());
  std::copy(shares.begin(), shares.end(), made.free.begin());
  return made;
}

inline Task task_requesting(std::uint16_t gpus, std::uint16_t milli) {
  Task made;
  made.gpus = gpus;
  made.gpu_milli = milli;
  return made;
}

}  // namespace gpulet::scheduler::randomly
