// What the solvers of placement see of a resource: positions instead of ids, one matrix of pair scores, NUMA nodes.
//
// Position p is the p-th device of the resource, so that "lowest index" is the resource's own order. Internal to
// this room: callers know chooser.h.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/chooser.h"

namespace gpulet::placement {

using Position = std::uint32_t;

struct Problem {
  std::size_t size = 0;
  std::vector<std::int32_t> weights;  // size squared, row by row; symmetric, 0 on the diagonal
  std::vector<std::uint32_t> numa;    // by position: 0, 1, … in order of appearance; an unknown node has one of its own

  std::int32_t weight(std::size_t a, std::size_t b) const { return weights[a * size + b]; }
};

// One request, checked: `available` and `required` ascending and unique, required inside available,
// 1 ≤ size ≤ available.size(), required.size() ≤ size.
struct Ask {
  std::vector<Position> available;
  std::vector<Position> required;
  std::size_t size = 0;
  Policy policy = Policy::kBestEffort;
};

struct Answer {
  std::vector<Position> chosen;      // ascending, exactly Ask::size
  std::int64_t score = 0;            // as Choice::score
  std::int64_t partition_score = 0;  // as Choice::partition_score; 0 for tightest
};

// Devices that are on no GPU of the topology (a snapshot older than the resource) have no links: score 0.
Problem make_problem(const topology::Topology& topology, const std::vector<Device>& devices);

// The same problem for some positions of it only, in the order given.
Problem restrict_to(const Problem& problem, const std::vector<Position>& positions);

// Sum of the weights of all pairs.
std::int64_t set_score(const Problem& problem, const std::vector<Position>& set);

}  // namespace gpulet::placement
