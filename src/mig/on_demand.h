// MIG devices on demand: decides which GPUs of a node are cut again for Pods that wait for a profile, and
// when they return to their configured layout. Nothing in use is ever given up: a change is only chosen if
// its plan keeps each instance with holders. Pure: any thread.
//
//     demand, quota left, interval over ─▶ cut: everything in use is kept, of idle devices as many as fit
//     nobody wants or uses it for `idle` ─▶ return to the configured layout, once its plan is not blocked
//
// A device that another demand counts on is not idle space. The MIG mode is never changed here.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "mig/layout.h"

namespace gpulet::mig {

struct OnDemandGpu {
  State state;                       // with its holders, Pods included
  Layout configured;                 // by its rule
  bool usable = true;                // false: faulty or withdrawn, nothing is cut
  std::optional<Time> changed_at{};  // its last change; nullopt: none is known
  Time needed_at{};                  // when somebody last wanted or used what was cut (is_needed)
};

// That many devices of the profile ("3g.40gb", a whole GPU instance) are to be idle at once.
struct DeviceDemand {
  std::string profile;
  unsigned count = 0;
  friend bool operator==(const DeviceDemand&, const DeviceDemand&) = default;
};

struct OnDemandLimits {
  unsigned max_gpus = 0;  // that may differ from their configured layout at a time
  Duration min_interval{}, idle{};
};

enum class OnDemandReason { kDemand, kReturn };

struct OnDemandChange {
  std::size_t gpu = 0;  // index into the GPUs
  Layout layout;
  OnDemandReason reason = OnDemandReason::kDemand;
  std::string profile{};  // that is demanded
  friend bool operator==(const OnDemandChange&, const OnDemandChange&) = default;
};

// Whether the GPU has instances in another layout than the configured one. One without instances, or with
// MIG off, has not been configured yet.
bool is_cut_on_demand(const OnDemandGpu& gpu);

// Idle devices of the profile.
unsigned idle_devices(const State& state, std::string_view profile);

// Whether the GPU's layout differs from the configured one, and something in it is in use that would block
// the return, or a demand wants a profile of it.
bool is_needed(const OnDemandGpu& gpu, std::span<const DeviceDemand> demands);

// The changes to make now, at most one a GPU, by demand in their order, then returns. Cost: some
// milliseconds for eight GPUs.
std::vector<OnDemandChange> decide_changes(std::span<const OnDemandGpu> gpus,
                                           std::span<const DeviceDemand> demands,
                                           const OnDemandLimits& limits, Time now);

// How many devices of the profile could be idle at once if they alone were demanded beside `demands`, with
// those that are idle already; and if no more than those, why.
struct DevicePotential {
  unsigned count = 0;
  std::string why_no_more;  // "GPU 0: 3 × 1g.10gb in use; GPU 1: changed less than minInterval ago"
};
DevicePotential device_potential(std::span<const OnDemandGpu> gpus, std::string_view profile,
                                 std::span<const DeviceDemand> demands, const OnDemandLimits& limits,
                                 Time now);

}  // namespace gpulet::mig
