#include "health/state/device_status.h"

#include <algorithm>

#include "health/evidence/evidence_rules.h"
#include "health/xid/xid_catalogue.h"

namespace gpulet::health {
namespace {

std::optional<Time> only_after(const std::optional<Time>& moment, Time seen) {
  return moment && *moment > seen ? moment : std::nullopt;
}

std::optional<Time> earlier_of(std::optional<Time> a, std::optional<Time> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// When the driver reported "no recovery action", late enough after the fault to have decided.
std::optional<Time> recovery_action_cleared_at(const GpuRecord& record, const OpenFault& fault,
                                               const Policy& policy) {
  if (record.is_source_unavailable(Source::kRecoveryAction) ||
      policy.trust_recovery_action == RecoveryActionTrust::kNever)
    return std::nullopt;
  if (policy.trust_recovery_action == RecoveryActionTrust::kLinked && !fault.linked) return std::nullopt;
  const auto& track = record.checks[1];
  const Time counts = fault.last_seen + policy.recovery_action_delay;
  if (!track.reported || !track.passing || track.last < counts || track.last <= fault.last_seen)
    return std::nullopt;
  return std::max(track.since, counts);
}

std::optional<Time> processes_gone_at(const GpuRecord& record, const FaultKey& key, const OpenFault& fault) {
  if (record.is_source_unavailable(Source::kProcesses)) return fault.last_seen;
  std::optional<Time> gone;
  for (const auto& [scope, reading] : record.processes) {
    const auto& [at, count] = reading;
    if (count == 0 && at > fault.last_seen && scope.covers(key.scope)) gone = earlier_of(gone, at);
  }
  return gone;
}

template <class Visit>
bool each_check(const GpuRecord& record, const FaultRule& rule, const Visit& visit) {
  for (unsigned index = 0; index < kCheckCount; ++index) {
    const unsigned bit = 1u << index;
    if ((rule.checks & bit) == 0) continue;
    // The handle is always available.
    if (bit != kCheckHandle && record.is_source_unavailable(source_of_check(index))) continue;
    if (!visit(record.checks[index])) return false;
  }
  return true;
}

}  // namespace

std::optional<Time> recovery_condition_met_at(const GpuRecord& record, const FaultKey& key,
                                              const OpenFault& fault, const Policy& policy) {
  const auto& rule = fault_rule(key.fault_class);
  const auto rebooted = earlier_of(only_after(record.reboot_at, fault.last_seen),
                                   only_after(record.returned_at, fault.last_seen));
  const auto reset = earlier_of(only_after(record.reset_at, fault.last_seen), rebooted);
  switch (rule.condition) {
    case RecoveryCondition::kNone:
      return fault.last_seen;
    case RecoveryCondition::kProcessesGone:
      return earlier_of(processes_gone_at(record, key, fault), reset);
    case RecoveryCondition::kReset:
      return earlier_of(reset, recovery_action_cleared_at(record, fault, policy));
    case RecoveryCondition::kReboot:
      return earlier_of(rebooted, recovery_action_cleared_at(record, fault, policy));
    case RecoveryCondition::kReadingClear:
      return record.is_source_unavailable(rule.source) ? reset : std::nullopt;
    case RecoveryCondition::kOperator:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Time> recovery_due(const GpuRecord& record, const FaultKey& key, const OpenFault& fault,
                                 const Policy& policy) {
  if (!fault.condition_met_at) return std::nullopt;
  Time start = *fault.condition_met_at;
  const bool all_pass = each_check(record, fault_rule(key.fault_class), [&](const CheckTrack& track) {
    start = std::max(start, track.since);
    return track.reported && track.passing;
  });
  if (!all_pass) return std::nullopt;
  return start + policy.hold_time(key.fault_class, record.relapses);
}

bool has_recovered(const GpuRecord& record, const FaultKey& key, const OpenFault& fault, Time due, Time now) {
  if (now < due) return false;
  const auto& rule = fault_rule(key.fault_class);
  if (rule.condition == RecoveryCondition::kReadingClear && !record.is_source_unavailable(rule.source)) {
    if (!fault.last_good_reading || *fault.last_good_reading < due) return false;
  }
  return each_check(record, rule, [&](const CheckTrack& track) { return track.last >= due; });
}

namespace {

constexpr std::string_view kStateNames[] = {"healthy",  "unmonitored", "degraded", "recovering",
                                            "draining", "quarantined", "lost"};

bool is_xid_class(FaultClass fault_class) { return fault_class <= FaultClass::kXidWatched; }

DeviceState state_for_effect(Effect effect, bool proved) {
  if (effect == Effect::kFlag) return DeviceState::kDegraded;
  if (proved) return DeviceState::kRecovering;
  if (effect == Effect::kDrain) return DeviceState::kDraining;
  return effect == Effect::kLose ? DeviceState::kLost : DeviceState::kQuarantined;
}

// "30 s", "1 h 30 min".
std::string duration_text(Duration duration) {
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

// Worst first, then oldest.
bool is_worse(const Fault& a, const Fault& b) {
  const auto rank = [](const Fault& fault) {
    return state_for_effect(fault.effect, fault.condition_met_at.has_value());
  };
  if (rank(a) != rank(b)) return rank(a) > rank(b);
  if (a.opened != b.opened) return a.opened < b.opened;
  return std::tie(a.fault_class, a.code, a.scope) < std::tie(b.fault_class, b.code, b.scope);
}

bool has_no_process(const GpuRecord& record, const Scope& device) {
  return std::ranges::any_of(record.processes, [&](const auto& reading) {
    return reading.second.second == 0 && reading.first.covers(device);
  });
}

// Whether a source other than the handle would report a fault.
bool is_monitored(const GpuRecord& record, const XidFilter& filter) {
  // Source::kProbe is not one of them: a preflight looks once, not always.
  static constexpr Source kSays[] = {Source::kDriverEvents, Source::kKernelLog, Source::kRecoveryAction,
                                     Source::kRowRemap, Source::kEcc};
  return !filter.is_all_disabled() &&
         std::ranges::any_of(kSays, [&](Source source) { return record.has_source_reported(source); });
}

std::string recovery_text_for(const Fault& worst, const GpuRecord& record, const Policy& policy) {
  if (worst.condition_met_at && worst.effect != Effect::kFlag) {
    return "once its checks have passed for " +
           duration_text(policy.hold_time(worst.fault_class, record.relapses));
  }
  return std::string(fault_rule(worst.fault_class).recovery_text);
}

}  // namespace

std::string_view enum_name(DeviceState state) { return kStateNames[static_cast<std::size_t>(state)]; }

std::string Fault::fault_text() const {
  if (is_xid_class(fault_class)) return describe_xid(code);
  std::string text(fault_rule(fault_class).summary);
  if (detail.empty()) return text;
  const bool runs_on = text.ends_with(':') || text.ends_with(" to");
  return text + (runs_on ? " " : ": ") + detail;
}

DeviceStatus derive_device_status(const GpuRecord& record, const Scope& device, const Policy& policy,
                                  const XidFilter& filter) {
  DeviceStatus status;
  status.relapses = record.relapses;
  status.reset_at = record.reset_at;
  for (const auto& [key, open] : record.faults) {
    // If the GPU is no longer partitioned, a fault of an instance covers the whole GPU.
    if (!key.scope.covers(device) && (record.mig_enabled || !device.is_whole_gpu())) continue;
    const auto effect = policy.effect(key.fault_class);
    if (effect == Effect::kIgnore) continue;
    status.faults.push_back({key.fault_class, key.code, key.scope, effect, open.opened, open.last_seen,
                             std::max(open.events, open.lines), open.detail, open.linked,
                             open.condition_met_at, recovery_due(record, key, open, policy)});
  }
  std::ranges::sort(status.faults, is_worse);
  if (status.faults.empty()) {
    status.state = is_monitored(record, filter) ? DeviceState::kHealthy : DeviceState::kUnmonitored;
    return status;
  }
  const auto& worst = status.faults.front();
  status.state = state_for_effect(worst.effect, worst.condition_met_at.has_value());
  if (status.state == DeviceState::kDraining && has_no_process(record, device))
    status.state = DeviceState::kQuarantined;
  status.reason = worst.fault_text();
  status.recovery_text = recovery_text_for(worst, record, policy);
  if (!is_allocatable(status.state)) {
    status.due = worst.last_seen;
    for (const auto& fault : status.faults) {
      if (fault.effect == Effect::kFlag) continue;
      status.due = fault.due && status.due ? std::max(fault.due, status.due) : std::nullopt;
    }
  }
  return status;
}

}  // namespace gpulet::health
