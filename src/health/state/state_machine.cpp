#include "health/state/state_machine.h"

#include <algorithm>

#include "health/xid/xid_catalogue.h"

namespace gpulet::health {
namespace {

HandleReading handle_reading_of(const inventory::Gpu& gpu) {
  if (!gpu.unreadable) return {};
  return {reachability_of(*gpu.unreadable), gpu.unreadable->message()};
}

// The scope of an XID, or the whole GPU where it names an instance that the GPU does not have: some drivers
// send zeros for a whole GPU in MIG mode. Source: docs/real-hardware.md.
Scope scope_of_known_devices(const GpuRecord& record, const Evidence& evidence) {
  const Scope scope = normalize_scope(evidence.scope);
  if (scope.is_whole_gpu() || !std::holds_alternative<XidReport>(evidence.body)) return scope;
  const Scope instance{scope.gpu, scope.gpu_instance};
  const auto covers_any = [&](const Scope& wanted) {
    return std::ranges::any_of(
        record.devices, [&](const Scope& device) { return !device.is_whole_gpu() && wanted.covers(device); });
  };
  if (covers_any(scope)) return scope;
  return covers_any(instance) ? instance : Scope{scope.gpu};
}

bool withdraws_device(const FaultKey& key, const Policy& policy) {
  return policy.effect(key.fault_class) >= Effect::kDrain;
}

WallTime floor_to_milliseconds(WallTime wall) { return std::chrono::floor<std::chrono::milliseconds>(wall); }

}  // namespace

HealthStateMachine::HealthStateMachine(Policy policy, XidFilter filter)
    : policy_(std::move(policy)), filter_(std::move(filter)) {}

GpuRecord* HealthStateMachine::record_for(const DeviceUuid& gpu) {
  const auto found = records_.find(gpu);
  if (found != records_.end()) return &found->second;
  if (gpu.empty() || records_.size() >= kMaxGpus) return nullptr;
  auto& record = records_[gpu];
  record.uuid = gpu;
  record.removed_at = now_;
  record.devices = {{gpu}};
  return &record;
}

bool HealthStateMachine::apply_to_record(GpuRecord& record, const Evidence& evidence) {
  if (filter_.is_all_disabled()) {
    // Health checks are disabled; but an unreachable GPU is unusable, and an operator's command counts.
    const auto source = source_of(evidence.body);
    const bool stands = source == Source::kHandle || source == Source::kOperator ||
                        std::holds_alternative<SourceNotice>(evidence.body);
    if (!stands) return false;
  }
  const auto taken = apply_evidence(
      record, {scope_of_known_devices(record, evidence), evidence.at, evidence.body}, {policy_, filter_});
  if (taken.changes_persisted_state) ++revision_;
  return !taken.changes_no_status;
}

// Evidence of one moment is evaluated together: faults end when the next moment begins.
void HealthStateMachine::begin_instant(GpuRecord& record, Time at, std::vector<StatusChange>& changes) {
  if (at <= record.last_evidence_at) return;
  if (record.has_pending_evidence) refresh_statuses(record, changes, true);
  record.last_evidence_at = at;
}

std::vector<StatusChange> HealthStateMachine::add_evidence(const Evidence& evidence) {
  std::vector<StatusChange> changes;
  auto* record = record_for(evidence.scope.gpu);
  if (record == nullptr) return changes;
  begin_instant(*record, evidence.at, changes);
  now_ = std::max(now_, evidence.at);
  if (apply_to_record(*record, evidence)) refresh_statuses(*record, changes, false);
  return changes;
}

std::vector<StatusChange> HealthStateMachine::apply_snapshot(const inventory::Snapshot& snapshot, Time now) {
  std::vector<StatusChange> changes;
  for (auto& [uuid, record] : records_) begin_instant(record, now, changes);
  now_ = std::max(now_, now);
  std::set<DeviceUuid> there;
  for (const auto& gpu : snapshot.gpus) {
    auto* record = record_for(gpu.uuid);
    if (record == nullptr) continue;
    there.insert(gpu.uuid);
    record->present = true;
    if (gpu.pci != inventory::PciAddress{}) {
      const auto slot = gpu.pci.sysfs_text();
      if (record->slot != slot) ++revision_;
      record->slot = slot;
    }
    record->driver_branch = driver_branch(snapshot.driver.version);
    if (!gpu.unreadable) {  // an unreadable GPU keeps its known devices
      record->mig_enabled = gpu.mig_enabled;
      record->devices = {{gpu.uuid}};
      for (const auto& mig : gpu.mig_devices) {
        record->devices.push_back({gpu.uuid, mig.gpu_instance, mig.compute_instance});
      }
    }
    apply_to_record(*record, {{gpu.uuid}, now, handle_reading_of(gpu)});
  }
  // Forget a card that was replaced in its slot.
  std::erase_if(records_, [&](const auto& entry) {
    const auto& [uuid, record] = entry;
    if (there.contains(uuid) || record.slot.empty()) return false;
    const bool replaced =
        std::ranges::any_of(there, [&](const auto& other) { return records_.at(other).slot == record.slot; });
    if (replaced) ++revision_;
    return replaced;
  });
  for (auto& [uuid, record] : records_) {
    if (!there.contains(uuid)) {
      if (std::exchange(record.present, false)) record.removed_at = now_;
      apply_to_record(record, {{uuid}, now, HandleReading{Reachability::kLost, "no longer in the node"}});
    }
    refresh_statuses(record, changes, false);
  }
  return changes;
}

std::vector<StatusChange> HealthStateMachine::advance_to(Time now) {
  now_ = std::max(now_, now);
  std::vector<StatusChange> changes;
  revision_ += std::erase_if(records_, [&](const auto& entry) {
    return !entry.second.present && now_ - entry.second.removed_at > policy_.removed_gpu_retention;
  });
  for (auto& [uuid, record] : records_) refresh_statuses(record, changes, true);
  return changes;
}

void HealthStateMachine::refresh_statuses(GpuRecord& record, std::vector<StatusChange>& changes,
                                          bool settle) {
  record.has_pending_evidence = !settle;
  const auto out = [&] {
    return std::ranges::any_of(record.faults, [&](const auto& fault) {
      return withdraws_device(fault.first, policy_) && fault_rule(fault.first.fault_class).relapses;
    });
  };
  if (!record.has_withdrawing_fault && out()) {
    record.has_withdrawing_fault = true;
    const bool relapse =
        record.last_recovered_at && now_ - *record.last_recovered_at <= policy_.relapse_window;
    record.relapses = relapse ? record.relapses + 1 : 0;
    ++revision_;
  }
  for (auto it = record.faults.begin(); it != record.faults.end();) {
    auto& [key, fault] = *it;
    // The earliest time counts, in whatever order the evidence arrives.
    const auto proof = recovery_condition_met_at(record, key, fault, policy_);
    if (proof) fault.condition_met_at = std::min(fault.condition_met_at.value_or(*proof), *proof);
    const auto due = recovery_due(record, key, fault, policy_);
    if (!settle || !due || !has_recovered(record, key, fault, *due, now_)) {
      ++it;
      continue;
    }
    if (key.fault_class == FaultClass::kApplicationRepeat) {
      record.errors_cleared = now_;
      record.errors.clear();
    }
    it = record.faults.erase(it);
    ++revision_;
  }
  if (record.has_withdrawing_fault && !out()) {
    record.has_withdrawing_fault = false;
    record.last_recovered_at = now_;
    ++revision_;
  }
  std::erase_if(record.statuses,
                [&](const auto& kept) { return std::ranges::count(record.devices, kept.first) == 0; });
  for (const auto& device : record.devices) {
    auto after = derive_device_status(record, device, policy_, filter_);
    const auto [kept, fresh] = record.statuses.try_emplace(device);
    DeviceStatus before = kept->second;
    after.since = fresh || after.state != before.state ? std::max(now_, before.since) : before.since;
    // A restored fault is as old as it was.
    if (fresh && !after.faults.empty()) after.since = std::min(now_, after.faults.front().opened);
    if (fresh) before.since = after.since;
    const bool is_change = fresh ? !is_allocatable(after.state) || after.state == DeviceState::kDegraded
                                 : after.state != before.state || after.reason != before.reason;
    kept->second = after;
    if (is_change) changes.push_back({device, std::move(before), std::move(after)});
  }
}

inventory::Snapshot HealthStateMachine::annotate_health(inventory::Snapshot snapshot) const {
  const auto health_of = [&](const Scope& device) -> inventory::Health {
    const auto found = records_.find(device.gpu);
    if (found == records_.end()) return {};
    const auto status = derive_device_status(found->second, device, policy_, filter_);
    return is_allocatable(status.state) ? inventory::Health{} : inventory::Health{false, status.reason};
  };
  for (auto& gpu : snapshot.gpus) {
    gpu.health = health_of({gpu.uuid});
    if (gpu.unreadable && gpu.health.healthy) {
      gpu.health = {false, "cannot be read: " + gpu.unreadable->message()};
    }
    for (auto& mig : gpu.mig_devices) {
      mig.health = gpu.health;
      if (mig.health.healthy) mig.health = health_of({gpu.uuid, mig.gpu_instance, mig.compute_instance});
    }
  }
  return snapshot;
}

std::optional<DeviceStatus> HealthStateMachine::device_status(const Scope& device) const {
  const auto record = records_.find(device.gpu);
  if (record == records_.end()) return std::nullopt;
  const auto kept = record->second.statuses.find(device);
  if (kept == record->second.statuses.end()) return std::nullopt;
  auto status = derive_device_status(record->second, device, policy_, filter_);
  status.since = kept->second.since;
  return status;
}

std::vector<std::pair<Scope, DeviceStatus>> HealthStateMachine::device_statuses() const {
  std::vector<std::pair<Scope, DeviceStatus>> all;
  for (const auto& [uuid, record] : records_) {
    for (const auto& [device, kept] : record.statuses) {
      all.emplace_back(device, derive_device_status(record, device, policy_, filter_));
      all.back().second.since = kept.since;
    }
  }
  return all;
}

std::vector<UnavailableSource> HealthStateMachine::unavailable_sources(const DeviceUuid& gpu) const {
  std::vector<UnavailableSource> absences;
  const auto found = records_.find(gpu);
  if (found == records_.end()) return absences;
  for (std::size_t i = 0; i < kSourceCount; ++i) {
    if (const auto& absent = found->second.sources[i].unavailable)
      absences.push_back({static_cast<Source>(i), *absent});
  }
  return absences;
}

bool HealthStateMachine::is_in_fabric(const DeviceUuid& gpu) const {
  const auto found = records_.find(gpu);
  if (found == records_.end()) return false;
  const auto state = found->second.fabric;
  return state == FabricState::kHealthy || state == FabricState::kDegraded;
}

LinkCounts HealthStateMachine::link_counts(const DeviceUuid& gpu) const {
  const auto found = records_.find(gpu);
  if (found == records_.end()) return {};
  const auto& links = found->second.links;
  const auto up = std::ranges::count_if(links, [](const auto& link) { return link.second.up; });
  return {static_cast<unsigned>(links.size()), static_cast<unsigned>(up)};
}

std::vector<DeviceUuid> HealthStateMachine::withdrawn_gpus() const {
  std::vector<DeviceUuid> gpus;
  for (const auto& [uuid, record] : records_) {
    const bool suspect = std::ranges::any_of(
        record.faults, [&](const auto& fault) { return withdraws_device(fault.first, policy_); });
    if (suspect && record.present) gpus.push_back(uuid);
  }
  return gpus;
}

std::optional<Time> HealthStateMachine::next_recovery_time() const {
  std::optional<Time> next;
  for (const auto& [uuid, record] : records_) {
    for (const auto& [key, fault] : record.faults) {
      const auto due = recovery_due(record, key, fault, policy_);
      if (due && (!next || *due < *next)) next = due;
    }
  }
  return next;
}

PersistedState HealthStateMachine::to_persisted_state(const ClockPair& clock,
                                                      const std::string& boot_id) const {
  const auto wall = [&](Time time) {
    return floor_to_milliseconds(clock.wall -
                                 std::chrono::duration_cast<WallTime::duration>(clock.now - time));
  };
  PersistedState saved{boot_id, {}};
  for (const auto& [uuid, record] : records_) {
    PersistedGpu gpu{uuid, record.slot, record.relapses, std::nullopt, {}};
    if (record.last_recovered_at) gpu.last_recovered_at = wall(*record.last_recovered_at);
    for (const auto& [key, fault] : record.faults) {
      if (key.fault_class == FaultClass::kDriverAway) continue;  // says nothing about the GPU
      gpu.faults.push_back({key.fault_class, key.code, key.scope.gpu_instance, key.scope.compute_instance,
                            wall(fault.opened), wall(fault.last_seen), std::max(fault.events, fault.lines),
                            fault.linked, fault.detail});
    }
    if (!gpu.faults.empty() || gpu.last_recovered_at) saved.gpus.push_back(std::move(gpu));
  }
  return saved;
}

void HealthStateMachine::restore_state(const PersistedState& saved, const std::string& boot_id,
                                       const ClockPair& clock) {
  now_ = std::max(now_, clock.now);
  const auto time = [&](WallTime wall) {
    // A clock that was set back makes nothing newer than now.
    return clock.now - std::max<Duration>(clock.wall - wall, Duration(1));
  };
  for (const auto& gpu : saved.gpus) {
    auto* record = record_for(gpu.uuid);
    if (record == nullptr) continue;
    record->slot = gpu.slot;
    record->relapses = gpu.relapses;
    if (gpu.last_recovered_at) record->last_recovered_at = time(*gpu.last_recovered_at);
    if (saved.boot_id != boot_id) record->reboot_at = clock.now;
    for (const auto& fault : gpu.faults) {
      auto& open = record->faults[{
          fault.fault_class, fault.code, {gpu.uuid, fault.gpu_instance, fault.compute_instance}}];
      open.opened = time(fault.opened);
      open.last_seen = std::max(open.opened, time(fault.last_seen));
      open.events = fault.count;
      open.linked = fault.linked;
      open.detail = fault.detail;
      record->has_withdrawing_fault =
          record->has_withdrawing_fault ||
          (policy_.effect(fault.fault_class) >= Effect::kDrain && fault_rule(fault.fault_class).relapses);
    }
  }
}

}  // namespace gpulet::health
