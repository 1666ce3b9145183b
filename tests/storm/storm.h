// One seed: a node, some operations with faults at random moments of them, and what must hold after each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/storm/fault.h"
#include "tests/storm/operation.h"

namespace gpulet::storm {

// A fault in a step of an operation, by their indices.
struct Pair {
  std::size_t fault = 0, operation = 0, step = 0;
  friend auto operator<=>(const Pair&, const Pair&) = default;
};
// Every pair, in one order.
const std::vector<Pair>& all_pairs();
std::string pair_text(const Pair& pair);  // "kill-agent allocation/admit"

// Of a seed's first operation. all_pairs().size() successive seeds have all of them, in another order.
Pair first_pair(std::uint64_t seed);

struct StormOptions {
  std::uint64_t seed = 0;
  unsigned operations = 1;
  std::string programs, library;  // see StormNode::start_node
};

struct StormResult {
  std::vector<Pair> injected;
  std::vector<std::string> violations;  // empty: the seed has passed
  std::string agent_log;
};

// The first operation has the fault of first_pair(). Everything else is drawn from the seed too: the same
// seed has the same operations, faults and times. Blocks until the node has recovered.
StormResult run_storm(const StormOptions& options);

}  // namespace gpulet::storm
