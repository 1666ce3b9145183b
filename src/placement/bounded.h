// The solver for what the tables cannot hold: many GPUs that are all different. Grows sets greedily, then swaps
// devices between sets while that helps, within a fixed number of steps: the same input gives the same answer, in at
// most 1 ms for 64 devices. It does not prove its answer best; Method::kBounded says so.
#pragma once

#include "placement/problem.h"

namespace gpulet::placement {

Answer choose_bounded(const Problem& problem, const Ask& ask);

}  // namespace gpulet::placement
