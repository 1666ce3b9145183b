// Places GPU instances on the memory slices of one GPU, and compute instances in GPU instances: the
// search behind plan.h, which has the rules.
#pragma once

#include <optional>
#include <vector>

#include "mig/layout.h"

namespace gpulet::mig {

// Requested compute instances of one GPU instance profile: the count of each size, indexed by
// compute slices.
using SliceCounts = std::vector<unsigned>;

// An assignment of compute instances to the GPU instances of one profile.
struct ComputeFit {
  struct NewPart {
    unsigned slices = 0;
    std::optional<Placement> placement;  // nullopt: the driver chooses
  };
  struct Instance {
    std::vector<std::size_t> keep;  // indices into GpuInstance::compute
    std::vector<NewPart> create;    // largest first
  };
  unsigned intact = 0;              // GPU instances with holders that keep every compute instance
  unsigned kept = 0;                // compute instances that are kept
  std::vector<Instance> instances;  // those of `existing` in their order, then new ones
};

// The best assignment of `parts` to the GPU instances `existing` and `fresh` new ones, none of them
// left empty: most intact, then most kept. nullopt if there is none. Where the driver reports no
// placements of compute instances, only slices count.
// Shapes: `parts` has profile.slices + 1 items. Cost: exponential in the compute instances of one
// profile, of which no GPU has more than eight.
std::optional<ComputeFit> fit_compute(const Profile& profile, const SliceCounts& parts,
                                      const std::vector<const GpuInstance*>& existing, unsigned fresh);

// What a layout requests of one GPU instance profile.
struct Request {
  const Profile* profile = nullptr;
  SliceCounts slice_counts;  // profile->slices + 1 items, not all 0
};

struct Packing {
  struct Instance {
    const Profile* profile = nullptr;
    Placement placement;
    const GpuInstance* existing = nullptr;  // null: to be created
    ComputeFit::Instance compute;
  };
  unsigned intact = 0;              // GPU instances with holders that stay unchanged
  std::vector<Instance> instances;  // by placement
};

// The best packing of `requests` by the order of plan.h. It keeps the most instances with holders
// intact, so whatever it cannot keep blocks the plan. nullopt if there is no packing. `existing`: the
// existing instances that may be kept. Shapes: one request a profile.
std::optional<Packing> find_packing(const State& state, const std::vector<Request>& requests,
                                    const std::vector<GpuInstance>& existing);

}  // namespace gpulet::mig
