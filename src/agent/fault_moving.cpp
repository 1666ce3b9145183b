#include "agent/fault_moving.h"

#include <algorithm>
#include <set>

namespace gpulet::agent {
namespace {

using health::Decision;
using Act = Decision::Act;
using Kind = cluster::EvictionNews::Kind;

cluster::PodRef ref_of(const Decision& decision) {
  return {decision.name_space, decision.name, decision.uid};
}

}  // namespace

void FaultMoving::update(health::ViewPtr view, std::vector<HeldPod> pods, const FaultMovingPolicy& policy) {
  // What was only shown counts no more than before a restart.
  if (policy_.node.dry_run && !policy.node.dry_run) {
    log_ = {};
    asking_.clear();
  }
  view_ = std::move(view);
  policy_ = policy;
  pods_.clear();
  // One whose say is not known is left alone until it is.
  for (auto& held : pods) {
    if (held.sure) pods_.push_back(std::move(held.pod));
  }
  decide();
}

health::MovingNode FaultMoving::node() const {
  health::MovingNode node;
  for (const auto& device : view_->devices) {
    node.devices.push_back({device.scope, device.standing});
    if (device.scope.whole()) ++node.gpus;
  }
  return node;
}

void FaultMoving::decide() {
  if (!view_) return;
  next_.reset();
  const Time now = ports_.loop.now();
  for (const auto& [uid, asking] : asking_) {
    if (!asking.over) log_.take_back(uid);
  }
  log_.tidy(pods_, policy_.node, now);
  auto decisions = health::decide_moves(node(), pods_, policy_.node, log_, now);
  const bool any = std::ranges::any_of(decisions, [](const Decision& one) { return one.act == Act::kEvict; });
  if (any && policy_.cluster_percent > 0) {
    auto held = node();
    held.hold = cluster_hold();
    if (asking_share_) return;  // decided when it is known
    decisions = health::decide_moves(held, pods_, policy_.node, log_, now);
  }
  std::set<std::string> asked, concerned;
  for (const auto& decision : decisions) {
    concerned.insert(decision.uid);
    if (decision.act == Act::kEvict) asked.insert(decision.uid);
  }
  std::erase_if(asking_,
                [&](const auto& entry) { return !entry.second.over && !asked.contains(entry.first); });
  std::erase_if(told_, [&](const auto& entry) { return !concerned.contains(entry.first); });
  for (const auto& decision : decisions) act(decision);
  tidy();
  again(decisions);
}

// Why nobody is to be moved, from the cluster's side; asks it where that is not known.
std::string FaultMoving::cluster_hold() {
  if (!share_ || ports_.loop.now() - share_->first >= kShareFresh) {
    ask_share();
    return {};
  }
  const auto& share = share_->second;
  if (!share) return "it is not known how many nodes have broken GPUs: " + share.error().text();
  const auto allowed = std::max<std::size_t>(1, share->nodes * std::min(policy_.cluster_percent, 100u) / 100);
  if (share->broken <= allowed) return {};
  return std::to_string(share->broken) + " of " + std::to_string(share->nodes) +
         " nodes have broken GPUs, more than " + std::to_string(allowed) +
         ": that is no fault of single GPUs";
}

void FaultMoving::ask_share() {
  if (asking_share_) return;
  asking_share_ = true;
  ports_.share([this, alive = std::weak_ptr(alive_)](Result<ClusterShare> share) {
    if (!alive.lock()) return;
    asking_share_ = false;
    share_.emplace(ports_.loop.now(), std::move(share));
    decide();
  });
}

void FaultMoving::act(const Decision& decision) {
  const std::string dry = decision.dry_run ? " (a dry run: nothing is done)" : "";
  switch (decision.act) {
    case Act::kTell:
    case Act::kFinish:
      if (policy_.node.enabled) tell(decision, "GpuFaultStays", "may stay: " + decision.reason);
      return;
    case Act::kEvictAt:
      return tell(decision, "GpuFaultEvictionPlanned",
                  "will be asked to leave, unless its device is well by then: " + decision.reason + dry);
    case Act::kHold:
      return tell(decision, "GpuFaultEvictionHeld", "is not asked to leave: " + decision.reason + dry);
    case Act::kEvict:
      return evict(decision);
    case Act::kLeaving:
      return;
  }
}

void FaultMoving::evict(const Decision& decision) {
  log_.add(decision, ports_.loop.now());
  auto [found, is_new] = asking_.try_emplace(decision.uid);
  if (!is_new) return;
  if (decision.dry_run) {
    found->second.over = true;
    ++moved_;
    return tell(decision, "GpuFaultEviction", "would be asked to leave (a dry run): " + decision.reason);
  }
  tell(decision, "GpuFaultEviction", "is asked to leave: " + decision.reason);
  found->second.eviction =
      ports_.evict(ref_of(decision), [this, decision](const auto& news) { on_news(decision, news); });
  if (found->second.eviction) return;
  found->second.over = true;
  tell(decision, "GpuFaultEvictionRefused", "cannot be asked to leave: no API server is known");
}

void FaultMoving::on_news(const Decision& decision, const cluster::EvictionNews& news) {
  const auto found = asking_.find(decision.uid);
  if (found == asking_.end()) return;
  switch (news.kind) {
    case Kind::kLeaving:
    case Kind::kGone:
      found->second.over = true;
      ++moved_;
      break;
    case Kind::kRefused:
      found->second.over = true;
      tell(decision, "GpuFaultEvictionRefused", "cannot be asked to leave: " + news.why);
      break;
    case Kind::kWaiting:
      tell(decision, "GpuFaultEvictionWaits", "is not evicted yet: " + news.why + "; tried again");
      break;
  }
}

// Once for each change of what is said of a Pod.
void FaultMoving::tell(const Decision& decision, std::string reason, std::string message) {
  MovingNews news{ref_of(decision), std::move(reason), std::move(message)};
  auto& last = told_[decision.uid];
  if (last == news) return;
  last = news;
  ports_.tell(news);
}

// At the next time that a decision names, and after a while while one is held.
void FaultMoving::again(const std::vector<Decision>& decisions) {
  std::optional<Time> at;
  const Time now = ports_.loop.now();
  for (const auto& decision : decisions) {
    std::optional<Time> when = decision.at;
    if (decision.act == Act::kHold) when = now + kHoldAgain;
    if (when && (!at || *when < *at)) at = when;
  }
  if (!at) return;
  next_ = ports_.loop.after(std::max(*at - now, Duration::zero()), [this] { decide(); });
}

// Of Pods that are gone nothing is remembered, but what the limits count (MovingLog).
void FaultMoving::tidy() {
  std::erase_if(asking_, [&](const auto& entry) {
    return entry.second.over &&
           std::ranges::find(pods_, entry.first, &health::PodOnDevice::uid) == pods_.end();
  });
}

}  // namespace gpulet::agent
