// GPU instances on the memory slices of one GPU: the search behind mig/plan.h, which has its rules.
#pragma once

#include <optional>
#include <vector>

#include "mig/compute_fit.h"
#include "mig/state.h"

namespace gpulet::mig {

// What is wanted of one GPU instance profile.
struct Request {
  const Profile* profile = nullptr;
  Parts parts;  // profile->slices + 1 items, not all 0
};

struct Packing {
  struct Instance {
    const Profile* profile = nullptr;
    Placement placement;
    const GpuInstance* there = nullptr;  // null: to be made
    ComputeFit::Instance compute;
  };
  unsigned intact = 0;              // GPU instances with holders that stay as they are
  std::vector<Instance> instances;  // by placement
};

// The best packing of `requests`, by the order of mig/plan.h, beginning with the most instances with holders
// intact: what blocks a plan is what the best packing cannot leave as it is. nullopt where there is none.
// `there`: the GPU's instances that may stay. Shapes: one request a profile.
std::optional<Packing> pack(const State& state, const std::vector<Request>& requests,
                            const std::vector<GpuInstance>& there);

}  // namespace gpulet::mig
