#include "placement/problem.h"

#include <algorithm>
#include <map>
#include <optional>

namespace gpulet::placement {

namespace {

// Far above any score that hardware has (18 links: 1860), and low enough that sums stay exact.
constexpr std::int64_t kMaxPairScore = 1'000'000;

}  // namespace

Problem make_problem(const topology::Topology& topology, const std::vector<Device>& devices) {
  Problem problem;
  problem.size = devices.size();
  problem.weights.assign(devices.size() * devices.size(), 0);
  std::map<std::optional<int>, std::uint32_t> nodes;
  for (std::size_t a = 0; a < devices.size(); ++a) {
    const std::size_t gpu = devices[a].gpu;
    const bool known = gpu < topology.size;
    const std::optional<int> node = known && gpu < topology.numa_nodes.size() ? topology.numa_nodes[gpu] : std::nullopt;
    problem.numa.push_back(nodes.try_emplace(node, static_cast<std::uint32_t>(nodes.size())).first->second);
    for (std::size_t b = 0; b < a && known; ++b) {
      if (devices[b].gpu >= topology.size || devices[b].gpu == gpu) continue;
      const std::int64_t score = topology::score(topology.between(devices[b].gpu, gpu));
      const auto weight = static_cast<std::int32_t>(std::clamp<std::int64_t>(score, 0, kMaxPairScore));
      problem.weights[a * devices.size() + b] = weight;
      problem.weights[b * devices.size() + a] = weight;
    }
  }
  return problem;
}

Problem restrict_to(const Problem& problem, const std::vector<Position>& positions) {
  Problem part;
  part.size = positions.size();
  part.weights.reserve(positions.size() * positions.size());
  std::map<std::uint32_t, std::uint32_t> nodes;
  for (const Position a : positions) {
    part.numa.push_back(nodes.try_emplace(problem.numa[a], static_cast<std::uint32_t>(nodes.size())).first->second);
    for (const Position b : positions) part.weights.push_back(problem.weight(a, b));
  }
  return part;
}

std::int64_t set_score(const Problem& problem, const std::vector<Position>& set) {
  std::int64_t score = 0;
  for (std::size_t i = 0; i < set.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) score += problem.weight(set[i], set[j]);
  }
  return score;
}

}  // namespace gpulet::placement
