#include "health/machine.h"

#include <algorithm>

#include "health/xid_catalogue.h"

namespace gpulet::health {
namespace {

HandleReading handle_of(const inventory::Gpu& gpu) {
  if (!gpu.unreadable) return {};
  switch (gpu.unreadable->code()) {
    case Code::kDeviceLost:
      return {Answer::kLost, gpu.unreadable->message()};
    case Code::kUnavailable:
      return {Answer::kDriverAway, gpu.unreadable->message()};
    default:
      return {Answer::kSilent, gpu.unreadable->message()};
  }
}

bool withdraws(const FaultKey& key, const Policy& policy) {
  return policy.effect(key.fault_class) >= Effect::kDrain;
}

WallTime rounded(WallTime wall) { return std::chrono::floor<std::chrono::milliseconds>(wall); }

}  // namespace

Machine::Machine(Policy policy, XidFilter filter) : policy_(std::move(policy)), filter_(std::move(filter)) {}

Record* Machine::record_for(const DeviceUuid& gpu) {
  const auto found = records_.find(gpu);
  if (found != records_.end()) return &found->second;
  if (gpu.empty() || records_.size() >= kMaxGpus) return nullptr;
  auto& record = records_[gpu];
  record.uuid = gpu;
  record.gone = now_;
  record.devices = {{gpu}};
  return &record;
}

bool Machine::apply(Record& record, const Evidence& evidence) {
  if (filter_.nothing_checked()) {
    // Nothing is judged; but what cannot be reached cannot be used, and an operator's word stands.
    const auto source = source_of(evidence.body);
    const bool stands = source == Source::kHandle || source == Source::kOperator ||
                        std::holds_alternative<SourceNotice>(evidence.body);
    if (!stands) return false;
  }
  const auto taken = take(record, evidence, {policy_, filter_});
  if (taken.kept) ++revision_;
  return !taken.quiet;
}

// What was said at one moment is weighed together: what is over is found over when the next moment begins.
void Machine::begin_moment(Record& record, Time at, std::vector<Change>& changes) {
  if (at <= record.moment) return;
  if (record.unsettled) refresh(record, changes, true);
  record.moment = at;
}

std::vector<Change> Machine::on_evidence(const Evidence& evidence) {
  std::vector<Change> changes;
  auto* record = record_for(evidence.scope.gpu);
  if (record == nullptr) return changes;
  begin_moment(*record, evidence.at, changes);
  now_ = std::max(now_, evidence.at);
  if (apply(*record, evidence)) refresh(*record, changes, false);
  return changes;
}

std::vector<Change> Machine::on_snapshot(const inventory::Snapshot& snapshot, Time now) {
  std::vector<Change> changes;
  for (auto& [uuid, record] : records_) begin_moment(record, now, changes);
  now_ = std::max(now_, now);
  std::set<DeviceUuid> there;
  for (const auto& gpu : snapshot.gpus) {
    auto* record = record_for(gpu.uuid);
    if (record == nullptr) continue;
    there.insert(gpu.uuid);
    record->present = true;
    if (gpu.pci != inventory::PciAddress{}) {
      const auto slot = gpu.pci.sysfs();
      if (record->slot != slot) ++revision_;
      record->slot = slot;
    }
    record->driver_branch = driver_branch(snapshot.driver.version);
    if (!gpu.unreadable) {  // what cannot be read keeps what was known of it
      record->mig_enabled = gpu.mig_enabled;
      record->devices = {{gpu.uuid}};
      for (const auto& mig : gpu.mig_devices) {
        record->devices.push_back({gpu.uuid, mig.gpu_instance, mig.compute_instance});
      }
    }
    apply(*record, {{gpu.uuid}, now, handle_of(gpu)});
  }
  // Another card in a known slot.
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
      if (std::exchange(record.present, false)) record.gone = now_;
      apply(record, {{uuid}, now, HandleReading{Answer::kLost, "no longer in the node"}});
    }
    refresh(record, changes, false);
  }
  return changes;
}

std::vector<Change> Machine::advance(Time now) {
  now_ = std::max(now_, now);
  std::vector<Change> changes;
  revision_ += std::erase_if(records_, [&](const auto& entry) {
    return !entry.second.present && now_ - entry.second.gone > policy_.forget;
  });
  for (auto& [uuid, record] : records_) refresh(record, changes, true);
  return changes;
}

void Machine::refresh(Record& record, std::vector<Change>& changes, bool settle) {
  record.unsettled = !settle;
  const auto out = [&] {
    return std::ranges::any_of(record.faults, [&](const auto& fault) {
      return withdraws(fault.first, policy_) && rule_of(fault.first.fault_class).relapses;
    });
  };
  if (!record.withdrawn && out()) {
    record.withdrawn = true;
    const bool relapse = record.recovered && now_ - *record.recovered <= policy_.relapse_window;
    record.relapses = relapse ? record.relapses + 1 : 0;
    ++revision_;
  }
  for (auto it = record.faults.begin(); it != record.faults.end();) {
    auto& [key, fault] = *it;
    // The earliest proof counts, whichever came first.
    const auto proof = proof_of(record, key, fault, policy_);
    if (proof) fault.proved = std::min(fault.proved.value_or(*proof), *proof);
    const auto due = due_of(record, key, fault, policy_);
    if (!settle || !due || !confirmed(record, key, fault, *due, now_)) {
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
  if (record.withdrawn && !out()) {
    record.withdrawn = false;
    record.recovered = now_;
    ++revision_;
  }
  std::erase_if(record.standings,
                [&](const auto& kept) { return std::ranges::count(record.devices, kept.first) == 0; });
  for (const auto& device : record.devices) {
    auto after = standing_of(record, device);
    const auto [kept, fresh] = record.standings.try_emplace(device);
    Standing before = kept->second;
    after.since = fresh || after.state != before.state ? std::max(now_, before.since) : before.since;
    // What was kept from an earlier process is as old as its fault.
    if (fresh && !after.faults.empty()) after.since = std::min(now_, after.faults.front().opened);
    if (fresh) before.since = after.since;
    const bool told = fresh ? !offered(after.state) || after.state == State::kDegraded
                            : after.state != before.state || after.reason != before.reason;
    kept->second = after;
    if (told) changes.push_back({device, std::move(before), std::move(after)});
  }
}

std::vector<DeviceUuid> Machine::suspects() const {
  std::vector<DeviceUuid> gpus;
  for (const auto& [uuid, record] : records_) {
    const bool suspect = std::ranges::any_of(
        record.faults, [&](const auto& fault) { return withdraws(fault.first, policy_); });
    if (suspect && record.present) gpus.push_back(uuid);
  }
  return gpus;
}

std::optional<Time> Machine::next_due() const {
  std::optional<Time> next;
  for (const auto& [uuid, record] : records_) {
    for (const auto& [key, fault] : record.faults) {
      const auto due = due_of(record, key, fault, policy_);
      if (due && (!next || *due < *next)) next = due;
    }
  }
  return next;
}

Saved Machine::save(const Clock& clock, const std::string& boot_id) const {
  const auto wall = [&](Time time) {
    return rounded(clock.wall - std::chrono::duration_cast<WallTime::duration>(clock.now - time));
  };
  Saved saved{boot_id, {}};
  for (const auto& [uuid, record] : records_) {
    SavedGpu gpu{uuid, record.slot, record.relapses, std::nullopt, {}};
    if (record.recovered) gpu.recovered = wall(*record.recovered);
    for (const auto& [key, fault] : record.faults) {
      if (key.fault_class == FaultClass::kDriverAway) continue;  // says nothing of the GPU
      gpu.faults.push_back({key.fault_class, key.code, key.scope.gpu_instance, key.scope.compute_instance,
                            wall(fault.opened), wall(fault.last_seen), std::max(fault.events, fault.lines),
                            fault.linked, fault.detail});
    }
    if (!gpu.faults.empty() || gpu.recovered) saved.gpus.push_back(std::move(gpu));
  }
  return saved;
}

void Machine::restore(const Saved& saved, const std::string& boot_id, const Clock& clock) {
  now_ = std::max(now_, clock.now);
  const auto time = [&](WallTime wall) {
    // A clock that was set back meanwhile makes nothing younger than now.
    return clock.now - std::max<Duration>(clock.wall - wall, Duration(1));
  };
  for (const auto& gpu : saved.gpus) {
    auto* record = record_for(gpu.uuid);
    if (record == nullptr) continue;
    record->slot = gpu.slot;
    record->relapses = gpu.relapses;
    if (gpu.recovered) record->recovered = time(*gpu.recovered);
    if (saved.boot_id != boot_id) record->reboot_at = clock.now;
    for (const auto& fault : gpu.faults) {
      auto& open = record->faults[{
          fault.fault_class, fault.code, {gpu.uuid, fault.gpu_instance, fault.compute_instance}}];
      open.opened = time(fault.opened);
      open.last_seen = std::max(open.opened, time(fault.last_seen));
      open.events = fault.count;
      open.linked = fault.linked;
      open.detail = fault.detail;
      record->withdrawn = record->withdrawn || (policy_.effect(fault.fault_class) >= Effect::kDrain &&
                                                rule_of(fault.fault_class).relapses);
    }
  }
}

}  // namespace gpulet::health
