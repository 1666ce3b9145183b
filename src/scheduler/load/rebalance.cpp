#include "scheduler/load/rebalance.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace gpulet::scheduler {
namespace {

std::string percent_text(double percent) { return std::to_string(std::lround(percent)) + " %"; }

std::string time_text(Duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  return seconds % 60 == 0 && seconds > 0 ? std::to_string(seconds / 60) + "m"
                                          : std::to_string(seconds) + "s";
}

// The percent of the GPU's time that the Pod brings along.
double load_of(const RebalancePod& pod) { return std::max(*pod.busy, static_cast<double>(pod.day.peak())); }

bool counts(const RebalancePod& pod) {
  return pod.stays.empty() && (!pod.busy || *pod.busy >= kMinMovedPercent);
}

bool has_room(const RebalanceGpu& target, const RebalancePod& pod, const RebalancePolicy& policy) {
  if (!target.is_usable || !target.busy) return false;
  const auto free = target.free.find(pod.resource);
  if (free == target.free.end() || free->second < pod.shares) return false;
  const LoadCurve both = target.day + pod.day;
  return *target.busy + *pod.busy < policy.threshold_percent && both.peak() < policy.threshold_percent &&
         both.memory <= 100;
}

// The coolest of the GPUs that have room for the Pod.
std::optional<std::size_t> find_target(std::span<const RebalanceGpu> gpus, std::size_t from,
                                       const RebalancePod& pod, const RebalancePolicy& policy) {
  std::optional<std::size_t> best;
  const auto heat = [&](std::size_t at) {
    return std::max(*gpus[at].busy, static_cast<double>(gpus[at].day.peak()));
  };
  for (std::size_t at = 0; at < gpus.size(); ++at) {
    if (pod.successor && at != *pod.successor) continue;
    if (at == from || !has_room(gpus[at], pod, policy)) continue;
    if (!best || heat(at) < heat(*best)) best = at;
  }
  return best;
}

// Smaller is asked first, among Pods of one priority.
auto rank_of(const RebalanceGpu& gpu, const RebalancePod& pod, const RebalancePolicy& policy) {
  const bool cools = *gpu.busy - *pod.busy < policy.threshold_percent;
  return std::tuple(!cools, cools ? *pod.busy : -*pod.busy, -pod.created);
}

struct GpuDecision {
  std::optional<RebalanceMove> move;
  std::string kept;
};

GpuDecision decide_on_gpu(std::span<const RebalanceGpu> gpus, std::size_t from,
                          const RebalancePolicy& policy) {
  const RebalanceGpu& gpu = gpus[from];
  if (!gpu.is_usable) return {{}, "it is not shared"};
  if (!gpu.busy) return {{}, "its present use is unknown"};
  if (!gpu.waits.empty()) return {{}, gpu.waits};
  if (gpu.pods.size() < 2) return {{}, "no two Pods share it"};
  if (gpu.later && *gpu.later < policy.threshold_percent - kForecastMargin)
    return {{}, "its forecast cools to " + percent_text(*gpu.later)};
  std::optional<std::int64_t> lowest;
  for (const RebalancePod& pod : gpu.pods) {
    if (counts(pod)) lowest = std::min(lowest.value_or(pod.priority), pod.priority);
  }
  if (!lowest) {
    const auto named = std::ranges::find_if(gpu.pods, [](const auto& pod) { return !pod.stays.empty(); });
    return {{}, named == gpu.pods.end() ? "no Pod of it is busy" : named->pod + " is " + named->stays};
  }
  std::optional<RebalanceMove> best;
  std::string kept;
  for (std::size_t at = 0; at < gpu.pods.size(); ++at) {
    const RebalancePod& pod = gpu.pods[at];
    if (!counts(pod) || pod.priority != *lowest) continue;
    if (!pod.busy) {
      kept = "the load of " + pod.pod + " is unknown";
      continue;
    }
    const auto target = find_target(gpus, from, pod, policy);
    if (!target) {
      if (kept.empty() && pod.successor == from)
        kept = "the node's placement would give the same GPU to the successor of " + pod.pod;
      if (kept.empty())
        kept = "no other GPU of the node has room for the " + percent_text(load_of(pod)) + " of " + pod.pod;
      continue;
    }
    if (!best || rank_of(gpu, pod, policy) < rank_of(gpu, gpu.pods[best->pod], policy))
      best = RebalanceMove{from, at, *target, ""};
  }
  if (!best) return {{}, kept};
  best->reason = gpus[best->target].gpu + " has room for its " + percent_text(load_of(gpu.pods[best->pod]));
  return {std::move(best), ""};
}

}  // namespace

void Rebalancer::add_sample(const std::string& gpu, std::optional<double> busy, const RebalancePolicy& policy,
                            Time now) {
  if (!busy) return;  // a gap, which may become too long
  if (*busy < policy.threshold_percent) {
    hot_.erase(gpu);
    return;
  }
  const auto [found, is_new] = hot_.try_emplace(gpu, HotRun{now, now});
  if (!is_new && now - found->second.last > std::max(kMaxSampleGap, policy.hot_for))
    found->second.since = now;
  found->second.last = now;
}

std::optional<Time> Rebalancer::hot_since(const std::string& gpu) const {
  const auto found = hot_.find(gpu);
  if (found == hot_.end()) return std::nullopt;
  return settled_from_ ? std::max(found->second.since, *settled_from_) : found->second.since;
}

bool Rebalancer::is_due(const std::string& gpu, const RebalancePolicy& policy, Time now) const {
  const auto since = hot_since(gpu);
  if (!since || now - *since < policy.hot_for) return false;
  return now - hot_.at(gpu).last <= std::max(kMaxSampleGap, policy.hot_for);
}

RebalanceDecision Rebalancer::decide(std::span<const RebalanceGpu> gpus, const RebalancePolicy& policy,
                                     Time now) const {
  RebalanceDecision decision;
  if (!policy.enabled || is_moving_) return decision;
  std::vector<std::size_t> due;
  for (std::size_t at = 0; at < gpus.size(); ++at) {
    if (is_due(gpus[at].gpu, policy, now)) due.push_back(at);
  }
  std::ranges::stable_sort(due, {}, [&](std::size_t at) { return *hot_since(gpus[at].gpu); });
  for (const std::size_t at : due) {
    const std::string hot = gpus[at].gpu + " has been above " + std::to_string(policy.threshold_percent) +
                            " % for " + time_text(policy.hot_for) + "; ";
    auto found = decide_on_gpu(gpus, at, policy);
    if (found.move) {
      decision.move = std::move(found.move);
      decision.move->reason = hot + decision.move->reason;
      return decision;
    }
    decision.kept.push_back(hot + found.kept);
  }
  return decision;
}

void Rebalancer::on_move_ended(Time now) {
  is_moving_ = false;
  settled_from_ = now;
}

}  // namespace gpulet::scheduler
