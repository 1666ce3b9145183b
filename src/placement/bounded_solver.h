// The problem that the placement solvers work on, and the bounded solver.
//
// Position p is the p-th device of the resource, so that "lowest index" is the resource's order. Internal to
// placement/: callers use chooser.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/chooser.h"

namespace gpulet::placement {

using Position = std::uint32_t;

struct Problem {
  std::size_t size = 0;
  std::vector<std::int32_t> weights;  // size squared, row by row; symmetric, 0 on the diagonal
  std::vector<std::uint32_t>
      numa;  // by position: 0, 1, … in order of appearance; all unknown nodes have one number

  std::int32_t weight(std::size_t a, std::size_t b) const { return weights[a * size + b]; }
};

// A valid request: `available` and `required` are ascending and unique, required is a subset of available,
// required.size() ≤ size, 1 ≤ size ≤ available.size().
struct Request {
  std::vector<Position> available;
  std::vector<Position> required;
  std::size_t size = 0;
  Policy policy = Policy::kBestEffort;
  std::span<const GpuLoad> loads{};  // by index in the Topology; empty: they decide nothing
};

struct Solution {
  std::vector<Position> chosen;      // ascending, exactly Request::size
  std::int64_t score = 0;            // as Choice::score
  std::int64_t partition_score = 0;  // as Choice::partition_score; 0 for tightest
};

// Devices on a GPU that the topology does not have (an older snapshot) have no links: score 0.
Problem make_problem(const topology::Topology& topology, const std::vector<Device>& devices);

// The problem for some of its positions, in this order.
Problem restrict_to(const Problem& problem, const std::vector<Position>& positions);

// Sum of the weights of all pairs.
std::int64_t set_score(const Problem& problem, const std::vector<Position>& set);

// Solves requests that are too large for exact tables (many GPUs that are all different): grows sets
// greedily, then swaps devices between sets while that helps, within a fixed number of steps. Deterministic,
// at most 1 ms for 64 devices, not proven best (Method::kBounded).

Solution solve_bounded(const Problem& problem, const Request& ask);

}  // namespace gpulet::placement
