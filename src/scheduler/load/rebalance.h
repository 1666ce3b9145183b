// Rebalancing: which Pod of a node is asked to leave a GPU that has been hot for long. A pure rule, with the
// state that it needs, used by the agent (agent/remediation/pod_rebalancer.h) and by the simulator.
//
// A GPU is hot while each sample of its use is at or above the threshold. Once it has been hot for long, and
// its forecast does not cool, one of the Pods that share it may be asked to leave:
//
//   - the lowest priority first. Never one of a higher priority while one of a lower priority shares the GPU,
//     except for those that are never asked (RebalancePod::stays) and those that use almost nothing of it;
//   - of equal priority the one whose leaving takes the GPU below the threshold with the least load moved,
//     else the one of the largest load; then the youngest;
//   - only if another GPU of the node has free shares for it and stays below the threshold with its load, now
//     and in every part of the coming day, and the node's placement would choose that GPU. Otherwise the next
//     GPU would be hot, or the same again, or at another hour.
//
// Unknown is neither hot nor idle: a Pod of unknown load is not asked, nor is one of a higher priority beside
// it, and a GPU of unknown load is no place to go. One Pod of a node at a time: the next after it has gone
// and GPUs have been hot for as long again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/loop.h"
#include "scheduler/load/forecast.h"

namespace gpulet::scheduler {

struct RebalancePolicy {
  bool enabled = false;
  bool dry_run = false;             // decide as usual, but only report
  unsigned threshold_percent = 95;  // of the GPU's time
  Duration hot_for = std::chrono::minutes(10);
  Duration horizon = std::chrono::minutes(30);  // at which the forecast is read
  friend bool operator==(const RebalancePolicy&, const RebalancePolicy&) = default;
};

// A forecast is a mean over an hour of a use that cannot exceed 100 %, so that of a hot GPU is below what it
// reaches: it cools when it is so many percent below the threshold.
inline constexpr double kForecastMargin = 10;
// A Pod that uses less of the GPU's time does not make it hot.
inline constexpr double kMinMovedPercent = 5;
// Samples further apart than this, or than `hot_for` if that is longer, say nothing about the time between.
inline constexpr Duration kMaxSampleGap = std::chrono::minutes(1);

// A Pod on a GPU.
struct RebalancePod {
  std::string pod;  // "namespace/name"
  std::int64_t priority = 0;
  std::int64_t created = 0;    // seconds since 1970
  std::string resource;        // whose shares it holds
  unsigned shares = 1;         // of this GPU
  std::optional<double> busy;  // percent of the GPU's time in the last sample; nullopt: unknown
  LoadCurve day;               // its expected load
  std::string stays;           // why it is never asked: "a DaemonSet Pod, …"; empty: it may be
  // The GPU that the node's placement would give its successor, an index; nullopt: any with free shares.
  std::optional<std::size_t> successor{};
};

struct RebalanceGpu {
  std::string gpu;                       // UUID
  bool is_usable = true;                 // healthy, and shared: neither MIG devices nor whole GPUs
  std::optional<double> busy;            // percent in the last sample; nullopt: unknown
  std::optional<double> later;           // percent that the forecast expects at the horizon; nullopt: unknown
  std::string waits;                     // why none of its Pods is asked now; empty: they may be
  LoadCurve day;                         // the sum of its Pods'
  std::map<std::string, unsigned> free;  // shares that no Pod holds, by resource
  std::vector<RebalancePod> pods;
};

struct RebalanceMove {
  std::size_t gpu = 0, pod = 0;  // indices: the Pod to ask, and the GPU that it leaves
  std::size_t target = 0;        // a GPU with room for it; the scheduler may find a better one
  std::string reason;            // "GPU-… has been above 95 % for 10m; GPU-… has room for its 40 %"
};

struct RebalanceDecision {
  std::optional<RebalanceMove> move;
  std::vector<std::string> kept;  // why other hot GPUs keep their Pods, one line each
};

// The state of one node. Loop's thread only.
class Rebalancer {
 public:
  // A sample of a GPU: percent of its time; nullopt: it failed.
  void add_sample(const std::string& gpu, std::optional<double> busy, const RebalancePolicy& policy,
                  Time now);
  // Since when the GPU is hot without a break, at the earliest since the last move ended.
  std::optional<Time> hot_since(const std::string& gpu) const;
  // Whether a GPU has been hot for long enough to look at its Pods.
  bool is_due(const std::string& gpu, const RebalancePolicy& policy, Time now) const;

  // At most one Pod of the node, none while a move is in progress. The GPU that has been hot for longest
  // comes first. Cost: O(GPUs × Pods).
  RebalanceDecision decide(std::span<const RebalanceGpu> gpus, const RebalancePolicy& policy, Time now) const;

  void on_move_started() { is_moving_ = true; }
  // The Pod has gone, or does not go: from now on GPUs must be hot for as long again.
  void on_move_ended(Time now);
  bool is_moving() const { return is_moving_; }

 private:
  struct HotRun {
    Time since, last;
  };
  std::map<std::string, HotRun> hot_;  // by GPU
  std::optional<Time> settled_from_;
  bool is_moving_ = false;
};

}  // namespace gpulet::scheduler
