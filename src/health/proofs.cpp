// When a fault is over: what it wants, and its checks.
#include <algorithm>

#include "health/record.h"

namespace gpulet::health {
namespace {

std::optional<Time> after(const std::optional<Time>& moment, Time seen) {
  return moment && *moment > seen ? moment : std::nullopt;
}

std::optional<Time> earlier(std::optional<Time> a, std::optional<Time> b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

// "No recovery action", said for long enough after the fault that the driver must have made up its mind.
std::optional<Time> drivers_word(const Record& record, const OpenFault& fault, const Policy& policy) {
  if (record.absent(Source::kRecoveryAction) || policy.trust_driver == TrustDriver::kNever)
    return std::nullopt;
  if (policy.trust_driver == TrustDriver::kLinked && !fault.linked) return std::nullopt;
  const auto& track = record.checks[1];
  const Time counts = fault.last_seen + policy.driver_word_delay;
  if (!track.heard || !track.passing || track.last < counts || track.last <= fault.last_seen)
    return std::nullopt;
  return std::max(track.since, counts);
}

std::optional<Time> applications_gone(const Record& record, const FaultKey& key, const OpenFault& fault) {
  if (record.absent(Source::kProcesses)) return fault.last_seen;
  std::optional<Time> gone;
  for (const auto& [scope, reading] : record.processes) {
    const auto& [at, count] = reading;
    if (count == 0 && at > fault.last_seen && scope.covers(key.scope)) gone = earlier(gone, at);
  }
  return gone;
}

template <class Visit>
bool each_check(const Record& record, const FaultRule& rule, const Visit& visit) {
  for (unsigned index = 0; index < kCheckCount; ++index) {
    const unsigned bit = 1u << index;
    if ((rule.checks & bit) == 0) continue;
    // Whether the driver answers at all can always be asked.
    if (bit != kCheckHandle && record.absent(source_of_check(index))) continue;
    if (!visit(record.checks[index])) return false;
  }
  return true;
}

}  // namespace

std::optional<Time> proof_of(const Record& record, const FaultKey& key, const OpenFault& fault,
                             const Policy& policy) {
  const auto& rule = rule_of(key.fault_class);
  const auto rebooted =
      earlier(after(record.reboot_at, fault.last_seen), after(record.returned_at, fault.last_seen));
  const auto reset = earlier(after(record.reset_at, fault.last_seen), rebooted);
  switch (rule.want) {
    case Want::kNothing:
      return fault.last_seen;
    case Want::kApplicationsGone:
      return earlier(applications_gone(record, key, fault), reset);
    case Want::kReset:
      return earlier(reset, drivers_word(record, fault, policy));
    case Want::kReboot:
      return earlier(rebooted, drivers_word(record, fault, policy));
    case Want::kReading:
      return record.absent(rule.source) ? reset : std::nullopt;
    case Want::kOperator:
      return std::nullopt;
  }
  return std::nullopt;
}

std::optional<Time> due_of(const Record& record, const FaultKey& key, const OpenFault& fault,
                           const Policy& policy) {
  if (!fault.proved) return std::nullopt;
  Time start = *fault.proved;
  const bool all_pass = each_check(record, rule_of(key.fault_class), [&](const CheckTrack& track) {
    start = std::max(start, track.since);
    return track.heard && track.passing;
  });
  if (!all_pass) return std::nullopt;
  return start + policy.hold_of(key.fault_class, record.relapses);
}

bool confirmed(const Record& record, const FaultKey& key, const OpenFault& fault, Time due, Time now) {
  if (now < due) return false;
  const auto& rule = rule_of(key.fault_class);
  if (rule.want == Want::kReading && !record.absent(rule.source)) {
    if (!fault.good_last || *fault.good_last < due) return false;
  }
  return each_check(record, rule, [&](const CheckTrack& track) { return track.last >= due; });
}

}  // namespace gpulet::health
