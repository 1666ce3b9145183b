// From open faults to a device's state, and to words.
#include <algorithm>

#include "health/machine.h"

namespace gpulet::health {
namespace {

constexpr std::string_view kStateNames[] = {"healthy",  "unmonitored", "degraded", "recovering",
                                            "draining", "quarantined", "lost"};

bool is_xid(FaultClass fault_class) { return fault_class <= FaultClass::kXidWatched; }

State state_by(Effect effect, bool proved) {
  if (effect == Effect::kFlag) return State::kDegraded;
  if (proved) return State::kRecovering;
  if (effect == Effect::kDrain) return State::kDraining;
  return effect == Effect::kLose ? State::kLost : State::kQuarantined;
}

// "30 s", "1 h 30 min".
std::string words(Duration duration) {
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  std::string out;
  const std::pair<std::int64_t, const char*> units[] = {
      {86'400'000, " d"}, {3'600'000, " h"}, {60'000, " min"}, {1000, " s"}, {1, " ms"}};
  for (const auto& [unit, suffix] : units) {
    if (left < unit) continue;
    out += (out.empty() ? "" : " ") + std::to_string(left / unit) + suffix;
    left %= unit;
  }
  return out.empty() ? "0 s" : out;
}

// The worst first, then the oldest.
bool worse(const Fault& a, const Fault& b) {
  const auto rank = [](const Fault& fault) { return state_by(fault.effect, fault.proved.has_value()); };
  if (rank(a) != rank(b)) return rank(a) > rank(b);
  if (a.opened != b.opened) return a.opened < b.opened;
  return std::tie(a.fault_class, a.code, a.scope) < std::tie(b.fault_class, b.code, b.scope);
}

bool no_process_left(const Record& record, const Scope& device) {
  return std::ranges::any_of(record.processes, [&](const auto& reading) {
    return reading.second.second == 0 && reading.first.covers(device);
  });
}

// Whether anything but the handle would tell of a fault.
bool monitored(const Record& record, const XidFilter& filter) {
  static constexpr Source kSays[] = {Source::kDriverEvents, Source::kKernelLog, Source::kRecoveryAction,
                                     Source::kRowRemap,     Source::kEcc,       Source::kProbe};
  return !filter.nothing_checked() &&
         std::ranges::any_of(kSays, [&](Source source) { return record.heard(source); });
}

std::string comes_back(const Fault& worst, const Record& record, const Policy& policy) {
  if (worst.proved && worst.effect != Effect::kFlag) {
    return "once its checks have passed for " + words(policy.hold_of(worst.fault_class, record.relapses));
  }
  return std::string(rule_of(worst.fault_class).comes_back);
}

}  // namespace

std::string_view name(State state) { return kStateNames[static_cast<std::size_t>(state)]; }

std::string Fault::text() const {
  if (is_xid(fault_class)) return describe_xid(code);
  std::string text(rule_of(fault_class).says);
  if (detail.empty()) return text;
  const bool runs_on = text.ends_with(':') || text.ends_with(" to");
  return text + (runs_on ? " " : ": ") + detail;
}

Standing Machine::standing_of(const Record& record, const Scope& device) const {
  Standing standing;
  standing.relapses = record.relapses;
  for (const auto& [key, open] : record.faults) {
    // What broke an instance of a GPU that is no longer cut up broke what it is now.
    if (!key.scope.covers(device) && (record.mig_enabled || !device.whole())) continue;
    const auto effect = policy_.effect(key.fault_class);
    if (effect == Effect::kIgnore) continue;
    standing.faults.push_back({key.fault_class, key.code, key.scope, effect, open.opened, open.last_seen,
                               std::max(open.events, open.lines), open.detail, open.linked, open.proved,
                               due_of(record, key, open, policy_)});
  }
  std::ranges::sort(standing.faults, worse);
  if (standing.faults.empty()) {
    standing.state = monitored(record, filter_) ? State::kHealthy : State::kUnmonitored;
    return standing;
  }
  const auto& worst = standing.faults.front();
  standing.state = state_by(worst.effect, worst.proved.has_value());
  if (standing.state == State::kDraining && no_process_left(record, device))
    standing.state = State::kQuarantined;
  standing.reason = worst.text();
  standing.comes_back = comes_back(worst, record, policy_);
  if (!offered(standing.state)) {
    standing.due = worst.last_seen;
    for (const auto& fault : standing.faults) {
      if (fault.effect == Effect::kFlag) continue;
      standing.due = fault.due && standing.due ? std::max(fault.due, standing.due) : std::nullopt;
    }
  }
  return standing;
}

inventory::Snapshot Machine::judge(inventory::Snapshot snapshot) const {
  const auto health_of = [&](const Scope& device) -> inventory::Health {
    const auto found = records_.find(device.gpu);
    if (found == records_.end()) return {};
    const auto standing = standing_of(found->second, device);
    return offered(standing.state) ? inventory::Health{} : inventory::Health{false, standing.reason};
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

std::optional<Standing> Machine::standing(const Scope& device) const {
  const auto record = records_.find(device.gpu);
  if (record == records_.end()) return std::nullopt;
  const auto kept = record->second.standings.find(device);
  if (kept == record->second.standings.end()) return std::nullopt;
  auto standing = standing_of(record->second, device);
  standing.since = kept->second.since;
  return standing;
}

std::vector<std::pair<Scope, Standing>> Machine::standings() const {
  std::vector<std::pair<Scope, Standing>> all;
  for (const auto& [uuid, record] : records_) {
    for (const auto& [device, kept] : record.standings) {
      all.emplace_back(device, standing_of(record, device));
      all.back().second.since = kept.since;
    }
  }
  return all;
}

std::vector<Absence> Machine::absences(const DeviceUuid& gpu) const {
  std::vector<Absence> absences;
  const auto found = records_.find(gpu);
  if (found == records_.end()) return absences;
  for (std::size_t i = 0; i < kSourceCount; ++i) {
    if (const auto& absent = found->second.sources[i].absent)
      absences.push_back({static_cast<Source>(i), *absent});
  }
  return absences;
}

}  // namespace gpulet::health
