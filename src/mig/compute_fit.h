// Compute instances into GPU instances of one profile: which of those that are there stay, and where the
// others go. The inner half of a plan; mig/packing.h says which GPU instances there are.
#pragma once

#include <optional>
#include <vector>

#include "mig/state.h"

namespace gpulet::mig {

// Compute instances wanted of one GPU instance profile: how many of each size, by compute slices.
using Parts = std::vector<unsigned>;

struct ComputeFit {
  struct New {
    unsigned slices = 0;
    std::optional<Placement> placement;  // nullopt: the driver chooses
  };
  struct Instance {
    std::vector<std::size_t> keep;  // indices into GpuInstance::compute
    std::vector<New> make;          // largest first
  };
  unsigned intact = 0;              // GPU instances with holders of which every compute instance stays
  unsigned kept = 0;                // compute instances that stay
  std::vector<Instance> instances;  // those of `there` in their order, then new ones
};

// The best fit of `parts` into the GPU instances `there` and `fresh` new ones, none of them left empty: most
// intact, then most kept. nullopt where there is none. Where the driver tells no placements of compute
// instances, what fits is judged by their slices alone.
// Shapes: `parts` has profile.slices + 1 items. Cost: exponential in the compute instances of one profile, of
// which no GPU has more than eight.
std::optional<ComputeFit> fit_compute(const Profile& profile, const Parts& parts,
                                      const std::vector<const GpuInstance*>& there, unsigned fresh);

}  // namespace gpulet::mig
