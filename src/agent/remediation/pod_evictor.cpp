#include "agent/remediation/pod_evictor.h"

#include <algorithm>
#include <set>

#include "base/log.h"

namespace gpulet::agent {
namespace {

using health::EvictionDecision;
using Act = EvictionDecision::Act;
using Kind = k8s::EvictionUpdate::Kind;

PodRef ref_of(const EvictionDecision& decision) { return {decision.name_space, decision.name, decision.uid}; }

}  // namespace

void send_eviction_event(k8s::EventRecorder& recorder, std::string_view subject, const EvictionEvent& event) {
  log::warning(subject, {{"pod", event.pod.name_space + "/" + event.pod.name},
                         {"reason", event.reason},
                         {"message", event.message}});
  recorder.record_event(
      {.warning = true, .reason = event.reason, .message = event.message, .pod = event.pod});
}

void PodEvictor::update_evictions(health::HealthViewPtr view, std::vector<HeldPod> pods,
                                  const PodEvictorPolicy& policy) {
  // A dry run does not count towards the limits of a real one.
  if (policy_.node.dry_run && !policy.node.dry_run) {
    log_ = {};
    pending_.clear();
  }
  view_ = std::move(view);
  policy_ = policy;
  pods_.clear();
  // Pods with missing data are skipped until it is known.
  for (auto& held : pods) {
    if (held.is_current) pods_.push_back(std::move(held.pod));
  }
  decide_and_act();
}

void PodEvictor::update_cut_off_pods(std::vector<health::CutOffPod> pods) {
  cut_off_ = std::move(pods);
  decide_and_act();
}

health::EvictionInputs PodEvictor::eviction_inputs() const {
  health::EvictionInputs node;
  node.cut_off = cut_off_;
  for (const auto& device : view_->devices) {
    node.devices.push_back({device.scope, device.status});
    if (device.scope.is_whole_gpu()) ++node.gpus;
  }
  return node;
}

std::vector<health::PodOnDevice> PodEvictor::known_pods() const {
  auto known = pods_;
  for (const auto& one : cut_off_) known.push_back(one.pod);
  return known;
}

void PodEvictor::decide_and_act() {
  if (!view_) return;
  next_.reset();
  const Time now = ports_.loop.now();
  for (const auto& [uid, asking] : pending_) {
    if (!asking.finished) log_.retract_eviction(uid);
  }
  log_.prune(known_pods(), policy_.node, now);
  auto decisions = health::decide_evictions(eviction_inputs(), pods_, policy_.node, log_, now);
  const bool any =
      std::ranges::any_of(decisions, [](const EvictionDecision& one) { return one.act == Act::kEvict; });
  if (any && policy_.max_unhealthy_nodes_percent > 0) {
    auto held = eviction_inputs();
    held.blocked_reason = cluster_block_reason();
    if (share_requested_) return;  // decide once the response has arrived
    decisions = health::decide_evictions(held, pods_, policy_.node, log_, now);
  }
  std::set<std::string> asked, concerned;
  for (const auto& decision : decisions) {
    concerned.insert(decision.uid);
    if (decision.act == Act::kEvict) asked.insert(decision.uid);
  }
  std::erase_if(pending_,
                [&](const auto& entry) { return !entry.second.finished && !asked.contains(entry.first); });
  std::erase_if(notified_, [&](const auto& entry) { return !concerned.contains(entry.first); });
  is_evicting_ = std::ranges::any_of(decisions, [](const EvictionDecision& one) {
    return one.act != Act::kNotify && one.act != Act::kFinish;
  });
  for (const auto& decision : decisions) act_on(decision);
  prune_state();
  schedule_next(decisions);
}

// Why the cluster's state forbids evictions; requests that state if it is unknown.
std::string PodEvictor::cluster_block_reason() {
  if (!share_ || ports_.loop.now() - share_->first >= kClusterShareTtl) {
    request_cluster_share();
    return {};
  }
  const auto& share = share_->second;
  if (!share) return "cannot count the nodes with unhealthy GPUs: " + share.error().full_message();
  const auto allowed =
      std::max<std::size_t>(1, share->nodes * std::min(policy_.max_unhealthy_nodes_percent, 100u) / 100);
  if (share->broken <= allowed) return {};
  return std::to_string(share->broken) + " of " + std::to_string(share->nodes) +
         " nodes have unhealthy GPUs, more than " + std::to_string(allowed) +
         ": the cause is not a single GPU";
}

void PodEvictor::request_cluster_share() {
  if (share_requested_) return;
  share_requested_ = true;
  ports_.share([this, alive = lifetime_.watch()](Result<ClusterShare> share) {
    if (!alive) return;
    share_requested_ = false;
    share_.emplace(ports_.loop.now(), std::move(share));
    decide_and_act();
  });
}

void PodEvictor::act_on(const EvictionDecision& decision) {
  const std::string dry = decision.dry_run ? " (dry run)" : "";
  switch (decision.act) {
    case Act::kNotify:
    case Act::kFinish:
      if (policy_.node.enabled) notify_pod(decision, "GpuFaultStays", "is not evicted: " + decision.reason);
      return;
    case Act::kEvictAt:
      return notify_pod(decision, "GpuFaultEvictionPlanned",
                        "will be evicted unless its device recovers first: " + decision.reason + dry);
    case Act::kBlocked:
      return notify_pod(decision, "GpuFaultEvictionHeld", "eviction is blocked: " + decision.reason + dry);
    case Act::kEvict:
      return evict_pod(decision);
    case Act::kTerminating:
      return;
  }
}

void PodEvictor::evict_pod(const EvictionDecision& decision) {
  log_.record_eviction(decision, ports_.loop.now());
  auto [found, is_new] = pending_.try_emplace(decision.uid);
  if (!is_new) return;
  if (decision.dry_run) {
    found->second.finished = true;
    ++evicted_;
    return notify_pod(decision, "GpuFaultEviction", "would be evicted (dry run): " + decision.reason);
  }
  notify_pod(decision, "GpuFaultEviction", "eviction requested: " + decision.reason);
  found->second.eviction = ports_.evict(
      ref_of(decision), [this, decision](const auto& update) { on_eviction_event(decision, update); });
  if (found->second.eviction) return;
  found->second.finished = true;
  notify_pod(decision, "GpuFaultEvictionRefused", "cannot be evicted: no API server is configured");
}

void PodEvictor::on_eviction_event(const EvictionDecision& decision, const k8s::EvictionUpdate& update) {
  const auto found = pending_.find(decision.uid);
  if (found == pending_.end()) return;
  switch (update.kind) {
    case Kind::kTerminating:
    case Kind::kGone:
      found->second.finished = true;
      ++evicted_;
      break;
    case Kind::kRefused:
      found->second.finished = true;
      notify_pod(decision, "GpuFaultEvictionRefused", "cannot be evicted: " + update.reason);
      break;
    case Kind::kWaiting:
      notify_pod(decision, "GpuFaultEvictionWaits", "is not evicted yet: " + update.reason + "; tried again");
      break;
  }
}

// Once for each change of a Pod's reason or message.
void PodEvictor::notify_pod(const EvictionDecision& decision, std::string reason, std::string message) {
  EvictionEvent event{ref_of(decision), std::move(reason), std::move(message)};
  auto& last = notified_[decision.uid];
  if (last == event) return;
  last = event;
  ports_.notify(event);
}

// Schedules the next decision: the earliest `at`, or the retry of a blocked one.
void PodEvictor::schedule_next(const std::vector<EvictionDecision>& decisions) {
  std::optional<Time> at;
  const Time now = ports_.loop.now();
  for (const auto& decision : decisions) {
    std::optional<Time> when = decision.at;
    if (decision.act == Act::kBlocked) when = now + kBlockedRetryInterval;
    if (when && (!at || *when < *at)) at = when;
  }
  if (!at) return;
  next_ = ports_.loop.after(std::max(*at - now, Duration::zero()), [this] { decide_and_act(); });
}

Status PodEvictor::reserve_eviction(const PodRef& pod, const DeviceUuid& gpu) {
  const Time now = ports_.loop.now();
  log_.prune(known_pods(), policy_.node, now);
  const auto recent = std::ranges::count_if(log_.evictions(), [&](const auto& entry) {
    return now - entry.second.at < policy_.node.max_evictions_window;
  });
  if (static_cast<std::size_t>(recent) >= policy_.node.max_evictions) {
    return fail(Code::kUnavailable,
                "at most " + std::to_string(policy_.node.max_evictions) +
                    " Pods may leave the node within gpulet.faults.eviction.maxEvictionsWindow",
                pod.name_space + "/" + pod.name);
  }
  EvictionDecision decision;
  decision.uid = pod.uid;
  decision.device = {.gpu = gpu};
  log_.record_eviction(decision, now);
  return {};
}

// Drops deleted Pods; EvictionLog keeps those that the limits count.
void PodEvictor::prune_state() {
  const auto known = known_pods();
  std::erase_if(pending_, [&](const auto& entry) {
    return entry.second.finished &&
           std::ranges::find(known, entry.first, &health::PodOnDevice::uid) == known.end();
  });
}

}  // namespace gpulet::agent
