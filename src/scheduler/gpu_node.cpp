#include "scheduler/gpu_node.h"

#include <algorithm>
#include <map>
#include <set>

namespace gpulet::scheduler {

topology::Topology topology_of(const GpuNode& node) {
  topology::Topology topology;
  topology.size = node.gpus.size();
  topology.pairs = node.pairs;
  topology.pairs.resize(topology.size * topology.size);
  topology.fabrics.resize(topology.size);
  for (const auto& gpu : node.gpus) topology.numa_nodes.push_back(gpu.numa);
  return topology;
}

std::string summary(const GpuNode& node) {
  std::string text = std::to_string(node.gpus.size()) + (node.gpus.size() == 1 ? " GPU" : " GPUs");
  std::map<health::State, std::size_t> states;
  for (const auto& gpu : node.gpus) ++states[gpu.state];
  for (const auto& [state, count] : states) {
    if (state == health::State::kHealthy || state == health::State::kUnmonitored) continue;
    text += ", " + std::to_string(count) + " " + std::string(name(state));
  }
  std::set<std::size_t> held;
  for (const auto& holder : node.holders) {
    for (const auto& part : holder.parts) {
      if (part.resource < node.resources.size() && part.unit < node.resources[part.resource].units.size()) {
        held.insert(node.resources[part.resource].units[part.unit].gpu);
      }
    }
  }
  return text + ", " + std::to_string(held.size()) + " held";
}

}  // namespace gpulet::scheduler
