// One line for a person on why these devices: what they are to each other, and what decided.
#pragma once

#include <string>

#include "placement/shared.h"

namespace gpulet::placement {

// `gpus` are topology indices. "GPUs 0 and 3, all linked by NV2, on NUMA node 0"
std::string describe_set(const topology::Topology& topology, const std::vector<std::size_t>& gpus);

// "…; in the best split of the 8 available into sets of 2, total 1640"
std::string explain(const topology::Topology& topology, const std::vector<std::size_t>& gpus, const Ask& ask,
                    const Answer& answer, Method method);

// "2 shares of GPU 0 (1 of 4 in use before) and 1 of GPU 3 (0 of 4): the least used first"
std::string explain_shared(const std::vector<SharedGpus::Use>& uses, SharedPolicy policy);

}  // namespace gpulet::placement
