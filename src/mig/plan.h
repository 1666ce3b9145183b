// Plans the change from a GPU's current MIG instances to a layout: which are kept, which are
// destroyed, and what is created where. Nothing is tried on the hardware, which would disturb
// running workloads.
//
// The plan is exact: a layout is refused only if no packing of it exists, and of all packings the
// plan is the best by
//   1. instances in use kept, each untouched;  2. most compute instances kept;  3. fewest GPU instances, so
//   that smaller compute instances share one;  4. most GPU instances kept;  5. lowest placements, those of
//   larger profiles first.
// These rules also give the fewest steps. The limits are the driver's, as in State: placements,
// each profile's maximum, compute slices and media engines of the largest profile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "mig/layout.h"

namespace gpulet::mig {

// No GPU has more memory slices.
inline constexpr unsigned kMaxMemorySlices = 64;

// A GPU instance that is kept, and its compute instances that are kept.
struct Keep {
  unsigned instance = 0;  // GpuInstance::id
  std::string profile;    // Profile::name
  Placement placement;
  std::vector<unsigned> compute;  // ComputeInstance::id
  friend bool operator==(const Keep&, const Keep&) = default;
};

struct DestroyCompute {
  unsigned instance = 0, compute = 0;  // ids
  std::string device;                  // "1c.2g.20gb"
  friend bool operator==(const DestroyCompute&, const DestroyCompute&) = default;
};

// A GPU instance to destroy, after its compute instances.
struct Destroy {
  unsigned instance = 0;
  std::string profile;
  Placement placement;
  friend bool operator==(const Destroy&, const Destroy&) = default;
};

struct NewCompute {
  unsigned slices = 0;
  std::string device;                  // "1c.2g.20gb"
  std::optional<unsigned> profile;     // ComputeProfile::id; nullopt if State has none of this size
  std::optional<Placement> placement;  // nullopt: the driver chooses, because State has no placements
  friend bool operator==(const NewCompute&, const NewCompute&) = default;
};

// A compute instance to create in a GPU instance that is kept.
struct CreateCompute {
  unsigned instance = 0;
  NewCompute compute;
  friend bool operator==(const CreateCompute&, const CreateCompute&) = default;
};

struct Create {
  unsigned profile_id = 0;
  std::string profile;
  Placement placement;
  std::vector<NewCompute> compute;  // in creation order
  friend bool operator==(const Create&, const Create&) = default;
};

// Carry it out in the order of the members. Any prefix of the steps leaves what is kept untouched,
// and a plan made from there ends in the same layout.
struct Plan {
  unsigned gpu = 0;  // State::index
  std::vector<Keep> keep;
  std::vector<DestroyCompute> destroy_compute;
  std::vector<Destroy> destroy;
  std::optional<bool> set_mode;
  // The mode was set before and waits for a reset. `set_mode` sets it again: the driver resets a GPU that
  // only waited to be idle.
  bool needs_reset = false;
  std::vector<CreateCompute> create_compute;
  std::vector<Create> create;
  // Holders of what would be destroyed, one line each: "process 4711 (python3), on 1g.10gb at 5". A
  // blocked plan has no steps; `blocked_steps` describes them for people.
  std::vector<std::string> blocked_by;
  std::string blocked_steps;

  bool is_blocked() const { return !blocked_by.empty(); }
  // Whether the GPU already has the layout.
  bool is_noop() const;
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Pure: any thread. Cost: ≤ 1 ms on 8 memory slices (plan_bench.cpp).
// Errors: kUnsupported if the GPU has no MIG; kInvalidArgument for a profile that the GPU does not
// have, with the nearest, or for devices that do not fit, with the nearest layout that does: of
// those that keep most of the requested profiles, the one with the fewest devices removed.
Result<Plan> make_plan(const State& state, const Layout& layout);

// Plans only a mode change: instances are left alone, or all destroyed if MIG is turned off. Errors
// and cost: those of make_plan.
Result<Plan> plan_mode(const State& state, bool enabled);

// For people: "GPU 3: destroy 2g.20gb at 4-5; create 3g.40gb at 4-7; keep 1g.10gb at 0", or "GPU 3:
// nothing to do (...)", and a line for each holder that blocks it.
std::vector<std::string> describe_plan(const Plan& plan);

}  // namespace gpulet::mig
