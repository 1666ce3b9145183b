#include "agent/remediation/pod_rebalancer.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "health/policy/eviction_policy.h"
#include "scheduler/core/cluster_state.h"
#include "scheduler/core/device_pool.h"

namespace gpulet::agent {
namespace {

using scheduler::RebalanceGpu;
using scheduler::RebalancePod;
using Kind = k8s::EvictionUpdate::Kind;

// Sets the successors of the resource's Pods: what the placement would choose once the Pod has left. `free`:
// the shares that no Pod holds, by unit.
void find_successors(const scheduler::GpuNode& node, std::size_t index, const scheduler::Shares& free,
                     std::vector<RebalanceGpu>& gpus) {
  const auto& resource = node.resources[index];
  if (std::ranges::none_of(resource.units, [](const auto& unit) { return unit.shares > 1; })) return;
  std::vector<placement::GpuLoad> loads;
  for (const auto& gpu : node.gpus) loads.push_back(gpu.now);
  scheduler::DevicePool pool(node, resource);
  const scheduler::Shares none(resource.units.size(), 0);
  for (const auto& allocation : node.allocations) {
    if (allocation.parts.size() != 1 || allocation.parts.front().resource != index) continue;
    const auto& part = allocation.parts.front();
    const std::size_t from = resource.units[part.unit].gpu;
    const auto pod = std::ranges::find(gpus[from].pods, allocation.pod, &RebalancePod::pod);
    auto free_then = free;
    free_then[part.unit] = static_cast<std::uint16_t>(free_then[part.unit] + part.shares);
    auto loads_then = loads;
    const double rest = gpus[from].busy.value_or(loads[from].busy_percent) - pod->busy.value_or(0);
    loads_then[from] =
        placement::make_gpu_load(rest, loads[from].memory_percent, loads[from].held_outside_pods);
    const auto& chosen = pool.choose_devices(free_then, none, part.shares, loads_then);
    pod->successor = from;  // also of a choice of several GPUs
    for (std::size_t unit = 0; unit < chosen.size(); ++unit) {
      if (chosen[unit] == part.shares) pod->successor = resource.units[unit].gpu;
    }
  }
}

std::optional<std::string> rebalance_annotation(const k8s::Annotations& annotations) {
  const auto found = annotations.find(kRebalanceAnnotation);
  return found == annotations.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::vector<RebalanceGpu> build_rebalance_gpus(const scheduler::GpuNode& node,
                                               const std::map<DeviceUuid, GpuLoadForecaster::GpuUse>& uses) {
  std::vector<RebalanceGpu> gpus(node.gpus.size());
  std::vector<bool> is_shared(node.gpus.size(), false);
  for (std::size_t at = 0; at < gpus.size(); ++at) {
    gpus[at].gpu = node.gpus[at].uuid;
    gpus[at].is_usable = health::is_allocatable(node.gpus[at].state);
    const auto use = uses.find(DeviceUuid(gpus[at].gpu));
    if (use == uses.end()) continue;
    gpus[at].busy = use->second.busy;
    gpus[at].later = use->second.later;
  }
  auto free = scheduler::offered_shares(node);
  for (const auto& allocation : node.allocations) scheduler::subtract_parts(free, allocation.parts);
  for (std::size_t index = 0; index < node.resources.size(); ++index) {
    const auto& resource = node.resources[index];
    for (std::size_t at = 0; at < resource.units.size(); ++at) {
      const auto& unit = resource.units[at];
      RebalanceGpu& gpu = gpus[unit.gpu];
      if (!unit.profile.empty()) gpu.is_usable = false;
      if (unit.shares > 1) is_shared[unit.gpu] = true;
      gpu.free[resource.name.str()] += free[index][at];
    }
  }
  for (std::size_t at = 0; at < gpus.size(); ++at) gpus[at].is_usable = gpus[at].is_usable && is_shared[at];
  for (const auto& allocation : node.allocations) {
    const bool is_single = allocation.parts.size() == 1;
    for (const auto& part : allocation.parts) {
      const auto& resource = node.resources[part.resource];
      RebalanceGpu& gpu = gpus[resource.units[part.unit].gpu];
      RebalancePod pod;
      pod.pod = allocation.pod;
      pod.resource = resource.name.str();
      pod.shares = part.shares;
      if (!is_single) pod.stays = "a Pod with devices of several GPUs or resources";
      const auto use = uses.find(DeviceUuid(gpu.gpu));
      if (use != uses.end()) {
        const auto found = use->second.pods.find(parse_pod_name(allocation.pod));
        if (found != use->second.pods.end()) {
          pod.busy = found->second.busy;
          pod.day = found->second.day;
          gpu.day = gpu.day + found->second.day;
        } else {
          gpu.busy.reset();  // a Pod that has come since the sample
        }
      }
      gpu.pods.push_back(std::move(pod));
    }
  }
  for (std::size_t index = 0; index < node.resources.size(); ++index)
    find_successors(node, index, free[index], gpus);
  return gpus;
}

void PodRebalancer::apply_policy(const scheduler::RebalancePolicy& policy) {
  policy_ = policy;
  if ((!policy_.enabled || policy_.dry_run) && move_ && !move_->is_accepted)
    abandon_move("rebalancing was switched off");
}

void PodRebalancer::on_sampled(const std::map<DeviceUuid, GpuLoadForecaster::GpuUse>& uses) {
  if (!needs_samples()) return;
  sampled_.clear();
  for (const auto& [uuid, use] : uses) {
    sampled_.push_back(uuid.str());
    rebalancer_.add_sample(uuid.str(), use.busy, policy_, ports_.loop.now());
  }
  if (move_) {
    if (move_->is_accepted) return check_whether_gone();
    if (!rebalancer_.hot_since(move_->gpu)) return abandon_move("its GPU is no longer hot");
    if (ports_.evictor.is_evicting()) return abandon_move("a GPU fault evicts Pods of the node");
    return;
  }
  if (is_due()) return start_round();
  kept_.clear();
}

bool PodRebalancer::is_due() const {
  return std::ranges::any_of(
      sampled_, [&](const std::string& gpu) { return rebalancer_.is_due(gpu, policy_, ports_.loop.now()); });
}

void PodRebalancer::start_round() {
  const Time now = ports_.loop.now();
  if (round_ || (read_at_ && now - *read_at_ < std::min(kRebalanceReadInterval, policy_.hot_for))) return;
  if (ports_.evictor.is_evicting()) return;
  read_at_ = now;
  round_.emplace(Round{});
  ports_.gpus([this, alive = lifetime_.watch()](Result<std::vector<RebalanceGpu>> gpus) {
    if (!alive || !round_) return;
    if (gpus) return read_pods(std::move(*gpus));
    log::warning("cannot determine which Pods hold a hot GPU; retrying", gpus.error());
    round_.reset();
  });
}

void PodRebalancer::read_pods(std::vector<RebalanceGpu> gpus) {
  round_->gpus = std::move(gpus);
  ++round_->pending;  // so that no answer ends the round before all requests are sent
  std::set<std::string> pods;
  std::set<std::string> namespaces;
  for (const auto& gpu : round_->gpus) {
    if (gpu.pods.size() < 2 || !rebalancer_.is_due(gpu.gpu, policy_, ports_.loop.now())) continue;
    for (const auto& pod : gpu.pods) {
      const PodName name = parse_pod_name(pod.pod);
      if (pods.insert(pod.pod).second) read_pod(pod.pod, name.name_space, name.name);
      if (!namespaces.insert(name.name_space).second) continue;
      ++round_->pending;
      ports_.reader.read_namespace_annotations(
          name.name_space,
          [this, space = name.name_space, alive = lifetime_.watch()](const auto& annotations) {
            if (!alive || !round_) return;
            if (annotations) round_->annotations[space] = *annotations;
            finish_read();
          });
    }
  }
  finish_read();
}

void PodRebalancer::read_pod(const std::string& key, const std::string& name_space, const std::string& name) {
  ++round_->pending;
  ports_.reader.read_pod(name_space, name, [this, key, alive = lifetime_.watch()](const auto& pod) {
    if (!alive || !round_) return;
    if (!pod) {
      round_->unknown[key] = "cannot read " + key + ": " + pod.error().full_message();
    } else if (!*pod) {
      round_->unknown[key] = key + " has gone";
    } else {
      round_->pods[key] = **pod;
    }
    finish_read();
  });
}

void PodRebalancer::finish_read() {
  if (--round_->pending == 0) decide();
}

// Why the Pod is never asked; empty if it may be.
std::string PodRebalancer::stays_reason(const k8s::PodMetadata& pod) const {
  const std::string reason = health::no_return_reason(pod.owner, pod.mirror);
  if (!reason.empty()) return reason;
  auto annotation = rebalance_annotation(pod.annotations);
  if (!annotation) annotation = rebalance_annotation(round_->annotations.at(pod.pod.name_space));
  if (!annotation || *annotation == "allow") return {};
  return std::string("a Pod whose annotation ") + kRebalanceAnnotation + " is " + annotation->substr(0, 64);
}

void PodRebalancer::complete_pods(RebalanceGpu& gpu) const {
  for (RebalancePod& pod : gpu.pods) {
    const auto unknown = round_->unknown.find(pod.pod);
    if (unknown != round_->unknown.end()) {
      gpu.waits = unknown->second;
      continue;
    }
    const auto found = round_->pods.find(pod.pod);
    if (found == round_->pods.end()) continue;  // of a GPU that is not hot
    const k8s::PodMetadata& data = found->second;
    if (!round_->annotations.contains(data.pod.name_space)) {
      gpu.waits = "cannot read the namespace " + data.pod.name_space;
      continue;
    }
    if (data.terminating) gpu.waits = pod.pod + " is terminating";
    pod.priority = data.priority;
    pod.created = data.created;
    if (pod.stays.empty()) pod.stays = stays_reason(data);
  }
}

void PodRebalancer::decide() {
  for (auto& gpu : round_->gpus) complete_pods(gpu);
  const auto decision = rebalancer_.decide(round_->gpus, policy_, ports_.loop.now());
  if (decision.kept != std::exchange(kept_, decision.kept)) {
    for (const auto& reason : decision.kept) log::info("a hot GPU keeps its Pods", {{"reason", reason}});
  }
  if (decision.move && !ports_.evictor.is_evicting()) move_pod(*decision.move);
  round_.reset();
}

void PodRebalancer::move_pod(const scheduler::RebalanceMove& move) {
  const RebalanceGpu& gpu = round_->gpus[move.gpu];
  const PodRef pod = round_->pods.at(gpu.pods[move.pod].pod).pod;
  if (policy_.dry_run) {
    ++counts_.dry_run;
    notify_pod(pod, "GpuRebalanceEviction", "would be evicted (dry run): " + move.reason);
    rebalancer_.on_move_ended(ports_.loop.now());
    return;
  }
  if (const auto reserved = ports_.evictor.reserve_eviction(pod, DeviceUuid(gpu.gpu)); !reserved) {
    return notify_pod(pod, "GpuRebalanceEvictionHeld",
                      "eviction is blocked: " + move.reason + "; " + reserved.error().message());
  }
  rebalancer_.on_move_started();
  move_.emplace(Move{.pod = pod, .gpu = gpu.gpu, .reason = move.reason, .eviction = nullptr});
  notify_pod(pod, "GpuRebalanceEviction", "eviction requested: " + move.reason);
  move_->eviction = ports_.evict(pod, [this](const auto& update) { on_eviction_event(update); });
}

void PodRebalancer::on_eviction_event(const k8s::EvictionUpdate& update) {
  if (!move_ || move_->is_accepted) return;
  switch (update.kind) {
    case Kind::kTerminating:
      ++counts_.evicted;
      move_->is_accepted = true;
      move_->eviction.reset();
      return;
    case Kind::kGone:
      ++counts_.evicted;
      return end_move();
    case Kind::kRefused:
      ++counts_.refused;
      notify_pod(move_->pod, "GpuRebalanceEvictionRefused", "cannot be evicted: " + update.reason);
      ports_.evictor.retract_eviction(move_->pod);
      return end_move();
    case Kind::kWaiting:
      return notify_pod(move_->pod, "GpuRebalanceEvictionWaits",
                        "is not evicted yet: " + update.reason + "; tried again while its GPU is hot");
  }
}

// Its grace period may take minutes. A Pod of the same name may come in its place.
void PodRebalancer::check_whether_gone() {
  if (std::exchange(move_->is_reading, true)) return;
  ports_.reader.read_pod(move_->pod.name_space, move_->pod.name,
                         [this, uid = move_->pod.uid, alive = lifetime_.watch()](const auto& pod) {
                           if (!alive || !move_ || move_->pod.uid != uid) return;
                           move_->is_reading = false;
                           if (pod && (!*pod || (**pod).pod.uid != uid)) end_move();
                         });
}

void PodRebalancer::abandon_move(const std::string& why) {
  notify_pod(move_->pod, "GpuRebalanceEvictionAbandoned", "is no longer to be evicted: " + why);
  ports_.evictor.retract_eviction(move_->pod);
  end_move();
}

void PodRebalancer::end_move() {
  move_.reset();
  rebalancer_.on_move_ended(ports_.loop.now());
}

// Once for each change of reason or message.
void PodRebalancer::notify_pod(const PodRef& pod, std::string reason, std::string message) {
  EvictionEvent event{pod, std::move(reason), std::move(message)};
  if (notified_ == event) return;
  notified_ = event;
  ports_.notify(event);
}

}  // namespace gpulet::agent
