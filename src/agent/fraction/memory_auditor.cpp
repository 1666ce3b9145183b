#include "agent/fraction/memory_auditor.h"

#include <algorithm>
#include <span>
#include <utility>

namespace gpulet::agent {
namespace {

using config::ExceededAction;
using Kind = k8s::EvictionUpdate::Kind;

}  // namespace

MemoryAuditor::MemoryAuditor(MemoryAuditorPorts ports, std::uint64_t seed)
    : ports_(std::move(ports)), seed_(seed) {}

void MemoryAuditor::apply_action(ExceededAction action, bool needs_ledger) {
  const bool is_same_need = std::exchange(needs_ledger_, needs_ledger) == needs_ledger;
  const bool is_same_action = std::exchange(action_, action) == action;
  if (is_same_action && is_same_need) return;
  if (!is_same_action) evictions_.clear();
  if (action == ExceededAction::kNone && !needs_ledger) ledger_.reset();
  if (ledger_ || (action == ExceededAction::kNone && !needs_ledger)) return follow_ledger();
  auto ports = ports_.ledger;
  ports.on_invalid_request = [this](const PodRef& pod, const std::string& why) {
    ports_.notify({pod, kMemoryRequestReason,
                   why + (needs_ledger_ ? "; its containers do not start" : "; its memory has no limit")});
  };
  ports.changed = [this] { follow_ledger(); };
  ledger_.emplace(std::move(ports), seed_);
  ledger_->use_snapshot(snapshot_);
}

void MemoryAuditor::use_snapshot(inventory::SnapshotPtr snapshot) {
  snapshot_ = std::move(snapshot);
  if (ledger_) ledger_->use_snapshot(snapshot_);
}

void MemoryAuditor::on_allocated() {
  if (ledger_) ledger_->on_allocated();
}

void MemoryAuditor::follow_ledger() {
  std::set<fraction::ContainerKey> held;
  std::set<DeviceUuid> limited;
  if (ledger_) {
    for (const auto& [gpu, entries] : ledger_->entries()) {
      for (const auto& entry : entries) {
        held.insert(entry.key());
        if (entry.limit > Bytes{} && action_ != ExceededAction::kNone) limited.insert(gpu);
      }
    }
  }
  tracker_.retain_containers(held);
  std::erase_if(audited_, [&](const auto& one) { return !limited.contains(one.first); });
  // The next reading is compared with what the ledger says now.
  for (const auto& gpu : limited) audited_[gpu].used.reset();
  std::erase_if(evictions_, [&](const auto& one) {
    return std::ranges::none_of(held, [&](const auto& key) { return key.pod_uid == one.first.uid; });
  });
  std::erase_if(reported_caps_, [&](const auto& one) { return !held.contains(one.first); });
  if (ledger_) report_ephemeral_containers();
  end_watch();
  if (audited_.empty()) return timer_.reset();
  if (!timer_) timer_ = ports_.loop.after(Duration::zero(), [this] { read_all(); });
}

void MemoryAuditor::report_ephemeral_containers() {
  for (const auto& [gpu, entries] : ledger_->entries()) {
    for (const auto& entry : entries) {
      const auto& caps = entry.access.ephemeral_caps;
      if (!entry.is_limited() || std::exchange(reported_caps_[entry.key()], caps) == caps || caps.empty())
        continue;
      const auto lowest = std::ranges::min_element(caps, {}, &fraction::GradeCap::highest);
      ports_.notify({entry.pod, kMemoryGradeReason,
                     "the memory limit of container " + entry.container + " has now at most the grade " +
                         std::string(fraction::limit_grade_name(lowest->highest)) + ": " + lowest->reason});
    }
  }
}

void MemoryAuditor::watch_all() {
  if (!ports_.watch_memory || watch_ || audited_.empty()) return;
  std::vector<GpuMemoryQuestion> known;
  unsigned intervals = kReadingsPerList;
  for (const auto& [gpu, audited] : audited_) {
    if (audited.is_reading || audited.has_failed || !audited.used || audited.readings >= kReadingsPerList ||
        std::ranges::any_of(audited.uses, &fraction::MemoryUse::is_exceeded))
      return;
    known.push_back({gpu, audited.used});
    intervals = std::min(intervals, kReadingsPerList - audited.readings);
  }
  watch_ = ports_.watch_memory(std::move(known), intervals, [this](const Result<unsigned>& passed) {
    if (!passed) return end_watch();
    for (auto& [gpu, audited] : audited_) audited.readings += *passed;
    read_all();
  });
  if (!watch_) return;
  watched_since_ = ports_.loop.now();
  timer_ = ports_.loop.after((intervals + 1) * kAuditInterval, [this] { read_all(); });
}

// The next reading comes when the watch would have made it.
void MemoryAuditor::end_watch() {
  if (!watch_) return;
  watch_.reset();
  const Duration since = (ports_.loop.now() - watched_since_) % kAuditInterval;
  timer_ = ports_.loop.after(kAuditInterval - since, [this] { read_all(); });
}

void MemoryAuditor::read_all() {
  watch_.reset();
  timer_ = ports_.loop.after(kAuditInterval, [this] { read_all(); });
  std::vector<GpuMemoryQuestion> together;
  for (const auto& [gpu, audited] : audited_) {
    auto question = next_question(gpu, audited);
    if (!question) continue;
    if (audited.has_failed) {
      read_memory({*std::move(question)});
    } else {
      together.push_back(*std::move(question));
    }
  }
  if (!together.empty()) read_memory(std::move(together));
}

std::optional<GpuMemoryQuestion> MemoryAuditor::next_question(const DeviceUuid& gpu,
                                                              const AuditedGpu& audited) {
  if (audited.is_reading) return std::nullopt;
  const bool must_list = audited.readings + 1 >= kReadingsPerList ||
                         std::ranges::any_of(audited.uses, &fraction::MemoryUse::is_exceeded);
  return GpuMemoryQuestion{gpu, must_list ? std::nullopt : audited.used};
}

void MemoryAuditor::read_memory(std::vector<GpuMemoryQuestion> questions) {
  std::vector<DeviceUuid> gpus;
  for (const auto& question : questions) {
    audited_[question.gpu].is_reading = true;
    gpus.push_back(question.gpu);
  }
  ports_.read_memory(std::move(questions), [this, gpus = std::move(gpus), alive = lifetime_.watch()](
                                               const Result<GpuMemoryReadings>& readings) {
    for (std::size_t i = 0; alive && i < gpus.size(); ++i) {
      if (readings) {
        on_reading(gpus[i], (*readings)[i]);
      } else {
        on_reading(gpus[i], fail(readings.error()));
      }
    }
    if (alive) watch_all();
  });
}

// A failed reading says nothing about any container.
void MemoryAuditor::on_reading(const DeviceUuid& gpu, const Result<GpuMemoryReading>& reading) {
  const auto found = audited_.find(gpu);
  if (found == audited_.end() || !ledger_) return;
  auto& audited = found->second;
  audited.is_reading = false;
  audited.has_failed = !reading;
  if (!reading) return;
  ++audited.readings;
  if (!reading->processes) return;  // as at the last reading, where nobody was above a limit
  audited.used = reading->used;
  audited.processes = *reading->processes;
  audited.readings = 0;
  const auto use = assign_processes(gpu, audited);
  std::vector<fraction::MemoryHolder> holders;
  const auto entries = ledger_->entries().find(gpu);
  if (entries == ledger_->entries().end()) return;
  for (const auto& entry : entries->second) holders.push_back({entry.key(), entry.limit});
  audited.unlisted = fraction::unlisted_memory(use);
  audited.uses = fraction::audit_gpu_memory(use, holders);
  // The ledger may change meanwhile, and with it `audited`.
  const auto uses = audited.uses;
  for (const auto& one : uses) judge_use(gpu, one);
}

fraction::GpuMemoryUse MemoryAuditor::assign_processes(const DeviceUuid& gpu, AuditedGpu& audited) {
  fraction::GpuMemoryUse use{audited.used, {}};
  std::map<unsigned, std::vector<metrics::PodCgroup>> cgroups;
  std::vector<metrics::PodCgroup> unknown;
  for (const auto& process : audited.processes) {
    fraction::AuditedProcess one{process.pid, process.memory, std::nullopt};
    if (use.processes.size() < kMaxAuditedProcesses) {
      const auto known = audited.cgroups.find(process.pid);
      auto& mine = cgroups[process.pid];
      mine = known != audited.cgroups.end() ? std::move(known->second) : ports_.cgroups(process.pid);
      const auto owner = find_owner(gpu, mine);
      if (owner.is_unknown) unknown.push_back(owner.cgroup);
      if (owner.entry != nullptr) one.container = owner.entry->key();
    }
    use.processes.push_back(std::move(one));
  }
  audited.cgroups = std::move(cgroups);
  for (const auto& cgroup : unknown) ledger_->on_unknown_process(gpu, cgroup);
  return use;
}

// The outermost Pod that holds the GPU counts: a container may make cgroups below its own.
MemoryAuditor::Owner MemoryAuditor::find_owner(const DeviceUuid& gpu,
                                               const std::vector<metrics::PodCgroup>& cgroups) const {
  Owner owner;
  const auto found = ledger_->entries().find(gpu);
  if (found == ledger_->entries().end()) return owner;
  for (const auto& cgroup : cgroups) {
    std::vector<const LedgerEntry*> of_pod;
    for (const auto& entry : found->second) {
      if (entry.pod.uid == cgroup.uid) of_pod.push_back(&entry);
    }
    if (of_pod.empty()) continue;
    owner.cgroup = cgroup;
    // Only a container that holds the GPU can use it: where that is one, its id does not matter.
    if (of_pod.size() == 1) {
      owner.entry = of_pod.front();
      return owner;
    }
    for (const auto* entry : of_pod) {
      if (!cgroup.container.empty() && entry->container_id == cgroup.container) owner.entry = entry;
    }
    owner.is_unknown = owner.entry == nullptr;
    return owner;
  }
  owner.is_unknown = !cgroups.empty();
  if (owner.is_unknown) owner.cgroup = cgroups.front();
  return owner;
}

const LedgerEntry* MemoryAuditor::find_entry(const DeviceUuid& gpu,
                                             const fraction::ContainerKey& container) const {
  const auto found = ledger_->entries().find(gpu);
  if (found == ledger_->entries().end()) return nullptr;
  const auto entry = std::ranges::find(found->second, container, &LedgerEntry::key);
  return entry == found->second.end() ? nullptr : &*entry;
}

void MemoryAuditor::judge_use(const DeviceUuid& gpu, const fraction::MemoryUse& use) {
  const auto* found = find_entry(gpu, use.container);
  if (found == nullptr || evictions_.contains(found->pod)) return;
  const bool is_exceeded = use.is_exceeded() && are_still_of(gpu, use);
  const auto excess = tracker_.observe(use.container, gpu, is_exceeded);
  const auto entry = *found;
  if (excess == fraction::Excess::kNew) {
    ++counts_.warned;
    ports_.notify({entry.pod, kMemoryExceededReason, describe_use(gpu, entry, use)});
    audited_[gpu].confirmation = ports_.loop.after(kConfirmationDelay, [this, gpu] {
      const auto found = audited_.find(gpu);
      if (found == audited_.end()) return;
      if (auto question = next_question(gpu, found->second)) read_memory({*std::move(question)});
    });
  }
  if (excess == fraction::Excess::kConfirmed) act_on(gpu, entry, use, true);
  if (excess == fraction::Excess::kOngoing) act_on(gpu, entry, use, false);
}

// The kernel may have given a pid to another process since it was looked up.
bool MemoryAuditor::are_still_of(const DeviceUuid& gpu, const fraction::MemoryUse& use) {
  auto& known = audited_[gpu].cgroups;
  bool are_same = true;
  for (const unsigned pid : use.pids) {
    auto now = ports_.cgroups(pid);
    are_same = are_same && known[pid] == now;
    known[pid] = std::move(now);
  }
  return are_same;
}

void MemoryAuditor::act_on(const DeviceUuid& gpu, const LedgerEntry& entry, const fraction::MemoryUse& use,
                           bool is_first) {
  // Memory of no process is kept by one that is not on the GPU.
  const auto evict = [&] { evict_pod(gpu, entry, describe_use(gpu, entry, use)); };
  if (action_ == ExceededAction::kEvict || (action_ == ExceededAction::kKill && use.pids.empty()))
    return evict();
  if (action_ != ExceededAction::kKill) return;
  if (!ports_.is_shared_by_mps(entry, gpu)) return kill_processes(gpu, entry, use, is_first);
  if (!end_and_kill(gpu, entry, use, is_first)) evict();
}

bool MemoryAuditor::end_and_kill(const DeviceUuid& gpu, const LedgerEntry& entry,
                                 const fraction::MemoryUse& use, bool is_first) {
  const Holder holder{gpu, use.container};
  if (ending_.contains(holder)) return true;
  const auto pids = present_processes(holder, use.pids);
  const auto ended = [this, holder, alive = lifetime_.watch()] {
    if (alive) on_clients_ended(holder);
  };
  if (!ports_.end_clients || !ports_.end_clients(gpu, pids, ended)) return false;
  ending_[holder] = {entry, use, is_first, ports_.loop.after(kEndClientsLimit, ended)};
  return true;
}

void MemoryAuditor::on_clients_ended(const Holder& holder) {
  const auto found = ending_.find(holder);
  if (found == ending_.end()) return;
  const auto gpu = holder.first;
  const auto ending = std::move(found->second);
  ending_.erase(found);
  if (ledger_ && action_ == ExceededAction::kKill)
    kill_processes(gpu, ending.entry, ending.use, ending.is_first);
}

// A pid may be another container's by now.
std::vector<unsigned> MemoryAuditor::present_processes(const Holder& holder,
                                                       const std::vector<unsigned>& pids) const {
  std::vector<unsigned> present;
  for (const unsigned pid : pids) {
    const auto owner = find_owner(holder.first, ports_.cgroups(pid));
    if (owner.entry != nullptr && owner.entry->key() == holder.second) present.push_back(pid);
  }
  return present;
}

void MemoryAuditor::end_clients_of(const Holder& holder) {
  const auto audited = audited_.find(holder.first);
  if (!ledger_ || !ports_.end_clients || audited == audited_.end()) return;
  const auto& uses = audited->second.uses;
  const auto use = std::ranges::find(uses, holder.second, &fraction::MemoryUse::container);
  if (use == uses.end()) return;
  const auto pids = present_processes(holder, use->pids);
  if (!pids.empty()) static_cast<void>(ports_.end_clients(holder.first, pids, [] {}));
}

void MemoryAuditor::kill_processes(const DeviceUuid& gpu, const LedgerEntry& entry,
                                   const fraction::MemoryUse& use, bool is_first) {
  std::size_t killed = 0;
  std::string problem;
  for (const unsigned pid : use.pids) {
    const auto owner = find_owner(gpu, ports_.cgroups(pid));
    if (owner.entry == nullptr || owner.entry->key() != use.container) continue;
    const auto result = ports_.kill(pid, owner.cgroup);
    if (result) {
      ++killed;
    } else if (result.error().code() != Code::kNotFound) {
      problem = result.error().full_message();
    }
  }
  const auto text = describe_use(gpu, entry, use);
  if (killed > 0) {
    ++counts_.killed;
    ports_.notify({entry.pod, kMemoryKilledReason,
                   text + ": killed " + std::to_string(killed) + (killed == 1 ? " process" : " processes")});
  } else if (is_first && !problem.empty()) {
    ++counts_.failed;
    ports_.notify({entry.pod, kMemoryKilledReason, text + ": its processes cannot be killed: " + problem});
  }
}

void MemoryAuditor::evict_pod(const DeviceUuid& gpu, const LedgerEntry& entry, const std::string& text) {
  auto& pending = evictions_[entry.pod];
  if (pending.eviction) return;
  const bool has_clients = ports_.is_shared_by_mps(entry, gpu);
  pending.eviction =
      ports_.evict(entry.pod, [this, pod = entry.pod, text, has_clients,
                               holder = Holder{gpu, entry.key()}](const k8s::EvictionUpdate& update) {
        if (has_clients && update.kind == Kind::kTerminating) end_clients_of(holder);
        on_eviction_update(pod, text, update);
      });
}

void MemoryAuditor::on_eviction_update(const PodRef& pod, const std::string& text,
                                       const k8s::EvictionUpdate& update) {
  const auto notify = [&](const std::string& what) {
    ports_.notify({pod, kMemoryEvictionReason, text + ": the Pod " + what});
  };
  switch (update.kind) {
    case Kind::kTerminating:
      ++counts_.evicted;
      return notify("is evicted");
    case Kind::kGone:
      return;
    case Kind::kRefused:
      ++counts_.failed;
      return notify("cannot be evicted: " + update.reason);
    case Kind::kWaiting: {
      const auto found = evictions_.find(pod);
      if (found == evictions_.end() || found->second.waits_for == update.reason) return;
      found->second.waits_for = update.reason;
      return notify("is not evicted yet: " + update.reason);
    }
  }
}

std::string MemoryAuditor::describe_use(const DeviceUuid& gpu, const LedgerEntry& entry,
                                        const fraction::MemoryUse& use) const {
  return "container " + entry.container + " uses " + std::to_string(use.used.mebibytes()) + " MiB of " +
         gpu.str() + ", its limit is " + std::to_string(use.limit.mebibytes()) + " MiB (" + entry.source +
         ")";
}

metrics::MemoryAuditStats MemoryAuditor::stats() const {
  metrics::MemoryAuditStats stats{.counts = counts_};
  if (!ledger_) return stats;
  for (const auto& [gpu, entries] : ledger_->entries()) {
    // Without an action nothing is measured, but the driver may hold the limits.
    const auto audited = audited_.find(gpu);
    const bool is_audited = audited != audited_.end();
    if (is_audited) stats.unlisted[gpu] = audited->second.unlisted;
    const auto uses = is_audited ? std::span<const fraction::MemoryUse>(audited->second.uses)
                                 : std::span<const fraction::MemoryUse>();
    for (const auto& entry : entries) {
      if (!entry.is_limited()) continue;
      const auto use = std::ranges::find(uses, entry.key(), &fraction::MemoryUse::container);
      stats.containers.push_back({gpu,
                                  {entry.pod.name_space, entry.pod.name},
                                  entry.container,
                                  entry.limit,
                                  use == uses.end() ? std::nullopt : std::optional(use->used)});
      auto caps = fraction::check_container_rules(entry.access, ports_.is_shared_by_mps(entry, gpu));
      caps.insert(caps.end(), entry.caps.begin(), entry.caps.end());
      const auto grade =
          fraction::grade_of_container(entry.limit.mebibytes(), ports_.limit_means(entry, gpu), caps);
      stats.containers.back().grade = fraction::limit_grade_name(grade.grade);
      for (const auto& reason : grade.reasons) stats.containers.back().reasons.push_back(reason.reason);
    }
  }
  return stats;
}

}  // namespace gpulet::agent
