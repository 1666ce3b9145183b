// Chooses which `size` of the kubelet's available devices a container gets. Pure.
//
// A Chooser is built once per resource and topology, before any request, and answers from its tables. The
// objectives, in order of precedence:
//   best-effort: the greatest total score of a partition of the available devices into sets of `size`, then
//   the
//     best set of such a partition that holds the required ones; ties by the best sets left for 8, 4 and 2,
//     then fewest NUMA nodes, then lowest index. Applies to one device too: the one whose loss costs least.
//   tightest: the set's own score, then what it leaves.
// If any available device is shared (several per GPU), usage per GPU decides, as in NVIDIA's plugin:
// distributed takes the least used GPUs first, packed the most used; between equally used ones, the load of
// the GPUs. Rules::shares_on precedes both. docs/placement.md has the details, proofs and costs.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "topology/topology.h"

namespace gpulet::placement {

enum class Policy { kBestEffort, kTightest };
enum class SharedPolicy { kDistributed, kPacked };

// A device; `gpu` is its index in the Topology.
struct Device {
  DeviceId id;
  std::size_t gpu = 0;
  // Whether other devices share this GPU (a replica or a MIG device): then usage decides, and links only
  // break ties.
  bool shared = false;
  // The first memory slice of a MIG device; else 0.
  unsigned memory_slice = 0;
  // The usual memory of such a share, in percent of its GPU; 0: the GPU's memory is not compared with it, as
  // for a MIG device, which has its own.
  unsigned memory_percent = 0;
  friend bool operator==(const Device&, const Device&) = default;
};
// Device::memory_percent of one of `shares` equal shares of a GPU.
constexpr unsigned equal_share_percent(unsigned shares) { return shares == 0 ? 0 : 100 / shares; }

// The load of a GPU, made by make_gpu_load. A GPU whose load is unknown counts as idle: all zero.
struct GpuLoad {
  std::uint8_t busy_percent = 0;
  std::uint8_t memory_percent = 0;
  bool held_outside_pods = false;  // a process of no Pod holds its memory
  friend bool operator==(const GpuLoad&, const GpuLoad&) = default;
};
// In steps so coarse that noise changes no choice: busy time in tens, rounded; memory in fives, rounded down,
// so that what the driver reserves does not count as a share's. Arguments are clamped to 0…100; NaN is 0.
GpuLoad make_gpu_load(double busy_percent, double memory_percent, bool held_outside_pods);

// What the load decides. kPrefer: between shares that are otherwise equal the least busy GPU, then the one
// with the least memory in use; a GPU without the memory for another share is taken last, and so is a whole
// GPU whose memory a process of no Pod holds. kStrict: for the agent the same; the scheduler also passes over
// a node that has only such GPUs.
enum class LoadPolicy { kIgnore, kPrefer, kStrict };

// Where the shares of one container are, of a GPU that is shared: a choice that cannot have them there has
// them anywhere.
enum class SharesOn { kAnyGpu, kOneGpu, kDifferentGpus };
inline constexpr std::array<std::string_view, 3> kSharesOnNames = {"", "oneGPU", "differentGPUs"};
constexpr std::string_view shares_on_name(SharesOn where) {
  return kSharesOnNames[static_cast<std::size_t>(where)];
}
// nullopt for any other text than "oneGPU" and "differentGPUs".
std::optional<SharesOn> parse_shares_on(std::string_view text);
// Whether shares on these GPUs, one entry a share, are where they have to be.
bool are_shares_placed(SharesOn where, std::span<const std::size_t> gpus);

struct Rules {
  Policy policy = Policy::kBestEffort;
  SharedPolicy shared = SharedPolicy::kDistributed;
  LoadPolicy load = LoadPolicy::kPrefer;
  SharesOn shares_on = SharesOn::kAnyGpu;
  friend bool operator==(const Rules&, const Rules&) = default;
};

// The algorithm that answered, for the log, `gpulet place` and tests.
enum class Method { kExact, kExactByClasses, kBounded, kShared };
std::string_view method_name(Method method);

struct Choice {
  std::vector<DeviceId> devices;     // exactly `size`, in the resource's order
  std::int64_t score = 0;            // sum of topology::score over the pairs of the set
  std::int64_t partition_score = 0;  // best-effort: the total of the partition, including the set; else 0
  Method method = Method::kExact;
  std::string reason;  // one line for a person: "2 GPUs linked by NV18; leaves sets of 4 and 2 whole"
};

class Chooser {
 public:
  // `devices` are in the resource's order, with unique ids. Any thread; the result is immutable and
  // thread-safe. Cost: see docs/placement.md; ≤ 50 ms and 2 MiB for 16 GPUs without twins, ≤ 30 µs for any 8;
  // never above 6 MiB.
  static std::shared_ptr<const Chooser> build_chooser(const topology::Topology& topology,
                                                      std::vector<Device> devices, Rules rules);
  virtual ~Chooser() = default;

  // Chooses `size` of `available`, including all of `required`. `loads` are by index in the Topology; GPUs
  // beyond its end have no known load. `shares_on` takes the place of the rules'. Errors: kInvalidArgument
  // for size 0, size above the number available, an unknown or duplicate id, a required id outside available,
  // more required than size. Cost: ≤ 1 ms for 16 GPUs; beyond that exact if enough GPUs are alike or few are
  // available, else bounded in ≤ 1 ms (Method::kBounded).
  virtual Result<Choice> choose_devices(std::span<const DeviceId> available,
                                        std::span<const DeviceId> required, std::size_t size,
                                        std::span<const GpuLoad> loads = {},
                                        std::optional<SharesOn> shares_on = std::nullopt) const = 0;
};

}  // namespace gpulet::placement
