#include "agent/fraction/memory_ledger.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "dra/device_pool.h"
#include "metrics/attribution.h"

namespace gpulet::agent {

MemoryLedger::MemoryLedger(MemoryLedgerPorts ports, std::uint64_t seed)
    : ports_(std::move(ports)), backoff_(kLedgerRetryBackoff, seed) {}

void MemoryLedger::use_snapshot(inventory::SnapshotPtr snapshot) {
  const bool is_first = !std::exchange(snapshot_, std::move(snapshot));
  if (!snapshot_) return;
  if (is_first) return refresh();
  rebuild();
}

void MemoryLedger::on_allocated() {
  before_allocation_ = begun_;
  for (std::size_t i = 0; i < std::size(kLedgerAllocationDelays); ++i)
    after_allocation_[i] = ports_.loop.after(kLedgerAllocationDelays[i], [this] { refresh(); });
}

void MemoryLedger::on_unknown_process(const DeviceUuid& gpu, const metrics::PodCgroup& cgroup) {
  if (unknown_.size() >= kMaxUnknownCgroups) unknown_.clear();
  auto& unknown = unknown_[{cgroup.uid, cgroup.container}];
  if (unknown.reads >= kUnknownProcessReads || ports_.loop.now() < unknown.next) return;
  unknown.next = ports_.loop.now() + std::min<Duration>(kUnknownProcessBackoff.first * (1u << unknown.reads),
                                                        kUnknownProcessBackoff.max);
  ++unknown.reads;
  for (auto& [name, pod] : pods_) {
    if (std::ranges::any_of(pod.containers, [&](const auto& one) { return one.second.shares.contains(gpu); }))
      pod.is_due = true;
  }
  refresh();
}

namespace {

// Other resources of the container have ids of their own.
bool names_gpu(const DeviceId& id) { return id.str().starts_with("GPU-") || id.str().starts_with("MIG-"); }

}  // namespace

ContainerLimits MemoryLedger::find_limits(const std::string& pod_uid, const std::string& container) {
  using State = ContainerLimits::State;
  auto* const found = find_run(pod_uid);
  if (found == nullptr && missing_.size() < kMaxMissingPods) missing_.insert(pod_uid);
  const auto* holder = found == nullptr ? nullptr : found->find_container(container);
  const bool is_current = is_list_current(pod_uid, container, holder != nullptr && holder->has_claim);
  if (found == nullptr || !snapshot_ || !is_current) return {};
  auto& pod = *found;
  const auto refuse = [&](std::string why) {
    return ContainerLimits{.state = State::kRefused, .pod = pod.facts->pod, .reason = std::move(why)};
  };
  if (!pod.problem.empty()) return refuse("what it requests is not valid: " + pod.problem);
  const auto request = pod.requests.find(container);
  const bool is_limited = request != pod.requests.end() && !request->second.memory_limit.is_zero();
  const auto held = pod.containers.find(container);
  if (held == pod.containers.end()) {
    const auto spec = std::ranges::find(pod.facts->containers, container, &k8s::PodContainer::name);
    if (spec == pod.facts->containers.end() || !spec->is_init) return {};
    if (is_limited) return refuse("the kubelet does not say which GPUs an init container holds");
  }
  ContainerLimits known{.state = State::kKnown, .pod = pod.facts->pod};
  known.is_init = held == pod.containers.end();
  if (request != pod.requests.end()) known.compute_thousandths = request->second.compute_thousandths;
  const auto claimed = find_claimed(pod, container);
  if (!claimed) return refuse(claimed.error().message());
  if (const auto checked = check_named_claims(pod, container); !checked)
    return refuse(checked.error().full_message());
  if (known.is_init) {
    for (const auto& [uuid, memory] : claimed->memory) {
      const auto* gpu = snapshot_->find(uuid);
      if (gpu != nullptr && !gpu->mig_enabled && memory.limit != Bytes{}) known.limits[uuid] = memory.limit;
    }
    known.unlimited = unlimited_gpus(pod);
    const auto spec = std::ranges::find(pod.facts->containers, container, &k8s::PodContainer::name);
    for (const auto& [resource, amount] : spec->limits) known.held[ResourceName(resource)];
    return known;
  }
  for (const auto& [resource, ids] : held->second.ids) known.held[resource].assign(ids.begin(), ids.end());
  if (held->second.has_twin) {
    known.held_problem = "the kubelet lists two Pods of this name; the older one must end first";
  } else if (std::ranges::any_of(held->second.unknown, [&](const DeviceUuid& gpu) {
               return !claimed->of_other_requests.contains(gpu);
             })) {
    known.held_problem = "one of its GPUs is not known";
  }
  const bool has_claimed_limit =
      std::ranges::any_of(claimed->memory, [](const auto& one) { return one.second.limit != Bytes{}; });
  if (!is_limited && !has_claimed_limit) return known;
  if (!known.held_problem.empty()) return refuse(known.held_problem);
  for (const auto& [uuid, shares] : held->second.shares) {
    if (claimed->of_other_requests.contains(uuid)) continue;
    // A MIG device holds its memory itself.
    const auto* gpu = snapshot_->find(uuid);
    if (uuid.str().starts_with("MIG-") || (gpu != nullptr && gpu->mig_enabled)) continue;
    if (gpu == nullptr ||
        (is_limited && dra::requested_limit(request->second, gpu->memory, shares) == Bytes{}))
      return refuse("the memory of " + uuid.str() + " is not known");
    const auto limit = limit_on(*gpu, pod, container, shares, claimed->memory).amount;
    if (limit != Bytes{}) known.limits[uuid] = limit;
  }
  if (known.limits.empty()) return known;
  known.unlimited = unlimited_gpus(pod);
  pod.starts = true;
  if (!after_start_) after_start_ = ports_.loop.after(kLedgerStartDelay, [this] { read_started_pods(); });
  return known;
}

void MemoryLedger::read_started_pods() {
  after_start_.reset();
  for (auto& [name, pod] : pods_) pod.is_due |= std::exchange(pod.starts, false);
  refresh();
}

bool MemoryLedger::is_list_current(const std::string& pod_uid, const std::string& container, bool has_claim) {
  if (before_start_.size() >= kMaxStartedContainers) before_start_.clear();
  if (answered_ > before_start_.try_emplace({pod_uid, container}, begun_).first->second) return true;
  // Of claims, no list of allocations is kept.
  return !has_claim && answered_ > before_allocation_ && ports_.shows_allocations &&
         ports_.shows_allocations();
}

const MemoryLedger::HeldContainer* MemoryLedger::HeldPod::find_container(const std::string& name) const {
  const auto found = containers.find(name);
  return found == containers.end() ? nullptr : &found->second;
}

bool MemoryLedger::HeldPod::has_limit() const {
  return has_claimed_limit || std::ranges::any_of(requests, [](const auto& request) {
           return !request.second.memory_limit.is_zero();
         });
}

bool MemoryLedger::has_limits() const {
  return std::ranges::any_of(
      entries_, [](const auto& gpu) { return std::ranges::any_of(gpu.second, &LedgerEntry::is_limited); });
}

void MemoryLedger::refresh_pods(const PodRef& starting) {
  refresh();
  if (snapshot_ && !starting.name.empty() && !has_pod(starting.uid))
    read_pod({starting.name_space, starting.name});
}

void MemoryLedger::refresh() {
  if (!snapshot_) return;
  if (!is_idle()) {
    is_again_due_ = true;
    return;
  }
  next_.reset();
  is_listing_ = true;
  is_again_due_ = has_failed_ = false;
  round_result_ = {};
  is_full_round_ = std::exchange(are_all_due_, false);
  const auto now = ports_.loop.now();
  for (auto& [name, pod] : pods_)
    pod.is_due |= is_full_round_ || (pod.has_limit() && now - pod.read_at >= kLimitedPodInterval);
  ports_.holders([this, list = ++begun_,
                  alive = lifetime_.watch()](const Result<std::vector<ContainerDevices>>& holders) {
    if (!alive) return;
    is_listing_ = false;
    if (holders) {
      answered_ = list;
      on_holders(*holders);
      is_stale_ = true;
      use_early_pods();
    } else {
      early_.clear();
      on_failure(holders.error().with_context("cannot read the device allocations from the kubelet"));
    }
    read_due_pods();
  });
}

void MemoryLedger::on_holders(const std::vector<ContainerDevices>& holders) {
  std::map<PodName, std::map<std::string, HeldContainer>> held;
  std::set<std::pair<PodName, std::string>> listed, twins;
  for (const auto& container : holders) {
    const std::pair key(container.pod, container.container);
    if (!listed.insert(key).second) twins.insert(key);
    for (const auto& [resource, ids] : container.devices) {
      for (const auto& id : ids) {
        const auto share = metrics::resolve_device_id(id, *snapshot_);
        if (!share && !names_gpu(id)) continue;
        auto& one = held[container.pod][container.container];
        if (!share) {
          one.unknown.emplace(id.str());
          continue;
        }
        // A device of several NUMA nodes is listed for each.
        if (!one.ids[resource].insert(id).second) continue;
        one.resources[share->device] = resource;
        if (resource.str() == dra::kDriverName) {
          one.has_claim = true;
          one.claimed.insert(share->device);
        }
        ++one.shares[share->device];
      }
    }
  }
  for (const auto& [pod, container] : twins) {
    if (held.contains(pod) && held[pod].contains(container)) held[pod][container].has_twin = true;
  }
  std::erase_if(pods_, [&](const auto& known) { return !held.contains(known.first); });
  std::erase_if(unlisted_, [&](const auto& known) { return held.contains(known.first); });
  for (auto& [name, containers] : held) {
    auto& pod = pods_[name];
    // Perhaps another Pod of the same name: PodResources has no UID.
    if (pod.containers != containers) pod = {std::move(containers), std::nullopt, {}, true};
  }
}

void MemoryLedger::use_early_pods() {
  for (auto& [name, facts] : std::exchange(early_, {})) {
    const auto found = pods_.find(name);
    if (found == pods_.end()) {
      keep_unlisted(name, facts);
      continue;
    }
    found->second.is_due = false;
    found->second.read_at = ports_.loop.now();
    use_facts(found->second, facts);
  }
}

void MemoryLedger::read_due_pods() {
  for (const auto& [name, pod] : pods_) {
    if (pod.is_due) read_pod(name);
  }
  finish_reads();
}

void MemoryLedger::read_pod(const PodName& name) {
  if (!reading_.insert(name).second) return;
  ports_.reader.read_pod(name.name_space, name.name,
                         [this, key = name, alive = lifetime_.watch()](const auto& facts) {
                           if (alive) on_pod(key, facts);
                         });
}

void MemoryLedger::on_pod(const PodName& name, const Result<std::optional<k8s::PodMetadata>>& facts) {
  reading_.erase(name);
  const auto found = pods_.find(name);
  if (!facts) {
    on_failure(facts.error().with_context("cannot read Pod " + name.name_space + "/" + name.name));
  } else if (is_listing_) {
    if (*facts) early_[name] = **facts;
  } else if (found != pods_.end()) {
    found->second.is_due = false;
    found->second.read_at = ports_.loop.now();
    if (*facts) use_facts(found->second, **facts);
  } else if (*facts) {
    keep_unlisted(name, **facts);
  }
  finish_reads();
}

// No List of the kubelet ever has a Pod whose GPUs are an init container's alone.
void MemoryLedger::keep_unlisted(const PodName& name, const k8s::PodMetadata& facts) {
  if (!std::ranges::any_of(facts.containers,
                           [](const auto& one) { return one.is_init && !one.claims.empty(); }))
    return;
  if (unlisted_.size() >= kMaxUnlistedPods && !unlisted_.contains(name)) unlisted_.clear();
  use_facts(unlisted_[name], facts);
}

MemoryLedger::HeldPod* MemoryLedger::find_run(const std::string& uid) {
  for (auto* const pods : {&pods_, &unlisted_}) {
    const auto found = std::ranges::find_if(
        *pods, [&](const auto& one) { return one.second.facts && one.second.facts->pod.uid == uid; });
    if (found != pods->end()) return &found->second;
  }
  return nullptr;
}

void MemoryLedger::use_facts(HeldPod& pod, const k8s::PodMetadata& facts) {
  const bool is_same_run = pod.facts && pod.facts->pod.uid == facts.pod.uid;
  is_stale_ |= !pod.facts || *pod.facts != facts;
  pod.facts = facts;
  if (is_same_run) return;
  pod.requests.clear();
  pod.problem.clear();
  const auto requests = fraction::parse_fraction_requests(k8s::fraction_fields(facts));
  if (!requests) {
    pod.problem = requests.error().message();
    return ports_.on_invalid_request(facts.pod, pod.problem);
  }
  for (const auto& request : *requests) pod.requests[request.container] = request;
}

// Tried again: the same failure is logged once.
void MemoryLedger::on_failure(const Error& error) {
  has_failed_ = true;
  if (round_result_) round_result_ = fail(error);
  const auto text = error.full_message();
  if (std::exchange(reported_problem_, text) != text) log::warning("memory limits are not known", error);
}

bool MemoryLedger::has_pod(const std::string& uid) const {
  return std::ranges::any_of(
      pods_, [&](const auto& one) { return one.second.facts && one.second.facts->pod.uid == uid; });
}

void MemoryLedger::finish_reads() {
  if (is_idle() && !is_again_due_ && round_result_) {
    std::erase_if(missing_, [this](const auto& uid) { return is_full_round_ || find_run(uid) != nullptr; });
    are_all_due_ = is_again_due_ = !missing_.empty();
  }
  if (is_idle()) schedule_poll();
  // Also before the other reads have ended: one may take as long as a request to the API server may.
  if (is_idle() || is_stale_) rebuild();
  if (!is_idle() || !ports_.refreshed) return;
  if (is_again_due_) return ports_.refreshed(fail(Code::kUnavailable, "the Pods are read again"));
  ports_.refreshed(round_result_);
  // Nobody waits for these any more.
  if (is_idle() && !is_again_due_)
    std::erase_if(before_start_, [this](const auto& one) {
      return one.second < answered_ && find_run(one.first.first) == nullptr;
    });
}

void MemoryLedger::schedule_poll() {
  if (is_again_due_) {
    next_ = ports_.loop.after(Duration::zero(), [this] { refresh(); });
  } else if (has_failed_) {
    next_ = ports_.loop.after(backoff_.next_delay(), [this] { refresh(); });
  } else {
    if (claim_problem_.empty()) backoff_.reset();
    next_.reset();
    reported_problem_.clear();
  }
}

void MemoryLedger::rebuild() {
  is_stale_ = false;
  const auto before = std::exchange(entries_, {});
  const auto last_problem = std::exchange(claim_problem_, {});
  const auto share_uses = count_share_uses();
  for (auto& [name, pod] : pods_) add_entries(name, pod, share_uses, before);
  if (!claim_problem_.empty() && claim_problem_ != last_problem)
    log::warning("memory limits are not known", Error(Code::kUnavailable, claim_problem_));
  const bool is_changed = before != entries_;
  if (is_idle() && !next_ && !claim_problem_.empty()) {
    next_ = ports_.loop.after(backoff_.next_delay(), [this] { refresh(); });
  } else if (is_idle() && !next_ && has_limits()) {
    next_ = ports_.loop.after(kLedgerPollInterval, [this] { refresh(); });
  }
  if (is_changed) ports_.changed();
}

}  // namespace gpulet::agent
