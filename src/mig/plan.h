// From the MIG instances that a GPU has to those that it shall have, on paper: which stay, which go, what is
// made and where. Nothing is tried on the hardware, which would disturb what runs there.
//
// Exact: a layout is refused only when no packing of it exists, and of all packings the plan is the best by
//   1. instances in use stay, each untouched;  2. most compute instances stay;  3. fewest GPU instances, so
//   that compute instances of parts share one;  4. most GPU instances stay;  5. lowest placements, those of
//   larger profiles first.
// What follows from these is also the fewest steps. The limits are the driver's own, as State has them:
// placements, each profile's most, compute slices and media engines of the largest profile.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "mig/layout.h"
#include "mig/state.h"

namespace gpulet::mig {

// No GPU has more memory slices.
inline constexpr unsigned kMaxMemorySlices = 64;

// A GPU instance that stays, and its compute instances that stay.
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

// A GPU instance that goes, once its compute instances have.
struct Destroy {
  unsigned instance = 0;
  std::string profile;
  Placement placement;
  friend bool operator==(const Destroy&, const Destroy&) = default;
};

struct NewCompute {
  unsigned slices = 0;
  std::string device;                  // "1c.2g.20gb"
  std::optional<unsigned> profile;     // ComputeProfile::id; nullopt where State has none of this size
  std::optional<Placement> placement;  // nullopt: the driver chooses, as State has no placements
  friend bool operator==(const NewCompute&, const NewCompute&) = default;
};

// A compute instance made in a GPU instance that stays.
struct CreateCompute {
  unsigned instance = 0;
  NewCompute compute;
  friend bool operator==(const CreateCompute&, const CreateCompute&) = default;
};

struct Create {
  unsigned profile_id = 0;
  std::string profile;
  Placement placement;
  std::vector<NewCompute> compute;  // to be made in this order
  friend bool operator==(const Create&, const Create&) = default;
};

// To be carried out in the order of the members. Any prefix of it leaves what is kept untouched, and a plan
// made anew from there ends in the same layout.
struct Plan {
  unsigned gpu = 0;  // State::index
  std::vector<Keep> keep;
  std::vector<DestroyCompute> destroy_compute;
  std::vector<Destroy> destroy;
  std::optional<bool> set_mode;
  // The mode was set before and has waited for a reset since. Setting it again is harmless, and enough where
  // it waited only for the GPU to be idle.
  bool needs_reset = false;
  std::vector<CreateCompute> create_compute;
  std::vector<Create> create;
  // Who holds what would have to go, one line each: "process 4711 (python3), on 1g.10gb at 5". Then there are
  // no steps above, and `would` says them for people.
  std::vector<std::string> blocked_by;
  std::string would;

  bool blocked() const { return !blocked_by.empty(); }
  // The layout is there already.
  bool nothing_to_do() const;
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Pure: any thread. Cost: ≤ 1 ms on 8 memory slices (plan_bench.cpp).
// Errors: kUnsupported, MIG wanted on a GPU without it; kInvalidArgument, a profile that the GPU does not
// have, with the nearest, or devices that do not fit, with the nearest layout that does: of those that keep
// most of the profiles asked for, the one with the fewest devices removed.
Result<Plan> plan(const State& state, const Layout& layout);

// Only the mode: instances are left as they are, or all go where it is to be off. Errors and cost: as plan's.
Result<Plan> plan_mode(const State& state, bool enabled);

// For people: "GPU 3: destroy 2g.20gb at 4-5; create 3g.40gb at 4-7; keep 1g.10gb at 0", or "GPU 3: nothing
// to do (...)", and a line for each who blocks it.
std::vector<std::string> describe(const Plan& plan);

}  // namespace gpulet::mig
