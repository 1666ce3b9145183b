// Choosing devices: which `size` of the devices that the kubelet has left a container should get. Pure.
//
// A Chooser is made once for one resource on one topology (off the request's path) and then answers from its tables.
// The objective, in the order in which it decides:
//   best-effort  the greatest total score of a partition of the available devices into sets of `size`, then the best
//                set of such a partition that holds the required ones; ties by the best sets left for 8, 4 and 2,
//                then fewest NUMA nodes, then lowest index. One device counts too: the one whose loss costs least.
//   tightest     the set's own score first, then what it leaves.
// Shared devices (several per GPU) are counted per GPU: distributed takes the least used GPUs first, packed the most.
// A request whose available devices include a shared one is decided that way, as in NVIDIA's plugin.
// docs/placement.md says it at length, with the proofs and costs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/strong.h"
#include "topology/topology.h"

namespace gpulet::placement {

enum class Policy { kBestEffort, kTightest };
enum class SharedPolicy { kDistributed, kPacked };

// One device as placement sees it. `gpu` is its index in the Topology.
struct Device {
  DeviceId id;
  std::size_t gpu = 0;
  // Whether other devices share this GPU (a replica or a MIG device): then usage counts, and links only break ties.
  bool shared = false;
  // Where a MIG device begins on its GPU, in memory slices; 0 for any other.
  unsigned memory_slice = 0;
};

struct Rules {
  Policy policy = Policy::kBestEffort;
  SharedPolicy shared = SharedPolicy::kDistributed;
};

// Which algorithm answered: for the log, `gpulet place` and tests.
enum class Method { kExact, kExactByClasses, kBounded, kShared };
std::string_view name(Method method);

struct Choice {
  std::vector<DeviceId> devices;  // exactly `size`, in the resource's own order
  std::int64_t score = 0;         // sum of topology::score over the pairs of the set
  std::int64_t partition_score = 0;  // best-effort: the objective's total, the set's own included; else 0
  Method method = Method::kExact;
  std::string reason;             // one line for a person: "2 GPUs linked by NV18; leaves sets of 4 and 2 whole"
};

class Chooser {
 public:
  // `devices` in the resource's order, ids unique. Any thread; the result is immutable and may be shared by threads.
  // Cost: see docs/placement.md; ≤ 50 ms and 2 MiB for 16 GPUs without twins, ≤ 30 µs for any 8; never above 6 MiB.
  static std::shared_ptr<const Chooser> make(const topology::Topology& topology, std::vector<Device> devices,
                                             Rules rules);
  virtual ~Chooser() = default;

  // Chooses `size` of `available` that include all of `required`.
  // Errors: kInvalidArgument, naming what is wrong: size 0, size above the number available, an unknown or doubled
  // id, a required id outside available, more required than size.
  // Cost: ≤ 1 ms for 16 GPUs; beyond, exact where enough GPUs are alike or few are available, else a good answer in
  // ≤ 1 ms (Method::kBounded).
  virtual Result<Choice> choose(std::span<const DeviceId> available, std::span<const DeviceId> required,
                                std::size_t size) const = 0;
};

}  // namespace gpulet::placement
