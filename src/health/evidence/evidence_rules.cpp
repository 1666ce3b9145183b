#include "health/evidence/evidence_rules.h"

#include <algorithm>

namespace gpulet::health {
namespace {

// An event and a log line within this time are the same XID.
constexpr Duration kSameEvent = std::chrono::seconds(1);
constexpr std::uint64_t kXidDoubleBit = 48, kXidRetirement = 63, kXidRetirementFailure = 64,
                        kXidFallenOff = 79, kXidContained = 94, kXidUncontained = 95,
                        kXidRecoveryAction = 154;

class EvidenceApplier {
 public:
  EvidenceApplier(GpuRecord& record, const Evidence& evidence, const RuleInputs& rules)
      : record_(record), rules_(rules), scope_(evidence.scope), at_(evidence.at) {}

  void operator()(const XidReport& report) { on_xid(report); }
  void operator()(const DriverNotice& notice);
  void operator()(const FallenOff&) { on_xid({.source = Source::kKernelLog, .code = kXidFallenOff}); }
  void operator()(const SwitchFault& fault);
  void operator()(const HandleReading& reading);
  void operator()(const RecoveryActionReading& reading);
  void operator()(const RowRemapReading& reading);
  void operator()(const RetiredPagesReading& reading);
  void operator()(const EccReading& reading);
  void operator()(const NvLinkReading& reading);
  void operator()(const PcieReading& reading);
  void operator()(const ViolationReading& reading);
  void operator()(const FabricReading& reading);
  void operator()(const InforomReading& reading) { apply_reading(FaultClass::kInforom, 0, !reading.valid); }
  void operator()(const ProcessReading& reading) { record_.processes[scope_] = {at_, reading.count}; }
  void operator()(const EnergyReading& reading);
  void operator()(const ProbeReading& reading);
  void operator()(const ResetDone&) { raise_to_now(record_.reset_at); }
  void operator()(const OperatorCommand& command);
  void operator()(const SourceNotice&) {}

  bool opened_fault() const { return opened_fault_; }
  bool renewed_fault() const { return renewed_fault_; }

 private:
  struct Sighting {
    bool in_log = false;
    bool linked = false;
    std::string detail;
  };
  void on_xid(const XidReport& report);
  void add_application_error(const XidReport& report);
  void count_application_errors(Time from);
  void open_fault(FaultClass fault_class, std::uint64_t code, const Sighting& seen);
  // A reading: `bad` opens or renews the fault; otherwise it meets the recovery condition.
  void apply_reading(FaultClass fault_class, std::uint64_t code, bool bad, std::string detail = {});
  void record_check(unsigned bit, bool passes);
  void raise_to_now(std::optional<Time>& moment) { moment = std::max(moment.value_or(at_), at_); }
  // Whether the counter grew faster than `limit` per minute since the track's minute began.
  bool exceeds_rate(RateTrack& track, std::uint64_t value, unsigned limit) const;

  GpuRecord& record_;
  const RuleInputs& rules_;
  Scope scope_;
  Time at_;
  bool opened_fault_ = false;
  bool renewed_fault_ = false;  // a met recovery condition was reset
};

void EvidenceApplier::open_fault(FaultClass fault_class, std::uint64_t code, const Sighting& seen) {
  if (rules_.policy.effect(fault_class) == Effect::kIgnore) return;
  FaultKey key{fault_class, code, fault_rule(fault_class).whole_gpu ? Scope{scope_.gpu} : scope_};
  if (record_.faults.size() >= kMaxFaults && !record_.faults.contains(key))
    key = {fault_class, 0, {scope_.gpu}};
  const auto [found, fresh] = record_.faults.try_emplace(key);
  auto& fault = found->second;
  if (fresh) {
    fault.opened = fault.last_seen = at_;
    fault.detail = seen.detail;
    opened_fault_ = true;
  }
  fault.opened = std::min(fault.opened, at_);
  if (at_ > fault.last_seen || (at_ == fault.last_seen && seen.detail > fault.detail))
    fault.detail = seen.detail;
  if (at_ > fault.last_seen) {  // a met recovery condition was met for the earlier occurrence
    fault.last_seen = at_;
    renewed_fault_ = renewed_fault_ || fault.condition_met_at;
    fault.condition_met_at.reset();
    fault.last_good_reading.reset();
  }
  fault.linked = fault.linked || seen.linked;
  ++(seen.in_log ? fault.lines : fault.events);
}

void EvidenceApplier::apply_reading(FaultClass fault_class, std::uint64_t code, bool bad,
                                    std::string detail) {
  if (bad) return open_fault(fault_class, code, {.detail = std::move(detail)});
  const auto found = record_.faults.find({fault_class, code, Scope{scope_.gpu}});
  if (found == record_.faults.end() || at_ <= found->second.last_seen) return;
  auto& fault = found->second;
  if (!fault.condition_met_at) fault.condition_met_at = at_;
  fault.last_good_reading = at_;
}

void EvidenceApplier::record_check(unsigned bit, bool passes) {
  unsigned index = 0;
  while ((bit >> index) != 1u) ++index;
  auto& track = record_.checks[index];
  if (passes && !track.passing) track.since = at_;
  track.reported = true;
  track.passing = passes;
  track.last = at_;
}

bool EvidenceApplier::exceeds_rate(RateTrack& track, std::uint64_t value, unsigned limit) const {
  const double minutes = std::chrono::duration<double, std::ratio<60>>(at_ - track.at).count();
  const bool fast = value > track.value && static_cast<double>(value - track.value) >
                                               static_cast<double>(limit) * std::max(minutes, 1.0);
  if (fast || minutes >= 1.0 || value < track.value) track = {at_, value};
  return fast;
}

void EvidenceApplier::on_xid(const XidReport& report) {
  const auto choice = rules_.filter.choice_for(report.code);
  if (choice == XidFilter::Choice::kIgnored) return;
  const bool in_log = report.source == Source::kKernelLog;
  if (report.code == kXidRecoveryAction && report.recovery_action.value_or(0) != 0) {
    const unsigned action = *report.recovery_action;
    const bool drain = action == 3 || action == 4;
    return open_fault(drain ? FaultClass::kRecoveryDrain : FaultClass::kRecoveryAction, 0,
                      {in_log, false, std::string(recovery_action_text(action))});
  }
  const auto verdict = classify_xid(report.code, report.nvlink5, record_.driver_branch);
  const bool withdraws = verdict.fault && rules_.policy.effect(*verdict.fault) >= Effect::kDrain;
  if (choice == XidFilter::Choice::kWatched && !withdraws) {
    return open_fault(FaultClass::kXidWatched, report.code, {in_log, verdict.linked, {}});
  }
  if (verdict.counts_as_application_error) add_application_error(report);
  if (!verdict.fault) return;
  if (verdict.follows_driver) {
    const bool line_to_come =
        verdict.fault == FaultClass::kXidNvLink && !in_log && record_.has_source_reported(Source::kKernelLog);
    if (line_to_come || record_.has_source_reported(Source::kRecoveryAction)) return;
  }
  open_fault(*verdict.fault, report.code, {in_log, verdict.linked, {}});
}

void EvidenceApplier::add_application_error(const XidReport& report) {
  const bool line = report.source == Source::kKernelLog;
  ApplicationError error{at_, report.code, scope_, !line, line, report.pid, report.owner};
  for (auto& known : record_.errors) {
    if (known.code != error.code || known.scope != scope_) continue;
    if (known.at - at_ > kSameEvent || at_ - known.at > kSameEvent) continue;
    const bool has_mine = line ? known.by_line : known.by_event;
    if (has_mine && known.application() == error.application())
      return;  // a repetition by the same application
    if (has_mine) continue;
    known.by_event = known.by_line = true;
    if (!known.pid) known.pid = error.pid;
    if (known.owner.empty()) known.owner = error.owner;
    return count_application_errors(std::min(known.at, at_));
  }
  if (at_ <= record_.errors_cleared) return;
  // Above the threshold, another error within the second only renews the fault.
  const auto open = record_.faults.find({FaultClass::kApplicationRepeat, 0, scope_});
  if (open != record_.faults.end() && at_ >= open->second.last_seen &&
      at_ - open->second.last_seen < kSameEvent) {
    return open_fault(FaultClass::kApplicationRepeat, 0, {line, false, {}});
  }
  const auto place = std::ranges::upper_bound(record_.errors, at_, {}, &ApplicationError::at);
  record_.errors.insert(place, std::move(error));
  if (record_.errors.size() > kMaxErrors) record_.errors.pop_front();
  count_application_errors(at_);
}

// Checks each window that ends at `from` or later and could contain it.
void EvidenceApplier::count_application_errors(Time from) {
  if (rules_.policy.application_error_threshold == 0) return;
  const auto& errors = record_.errors;
  const auto window = rules_.policy.application_error_window;
  const Time arrived = at_;
  for (const auto& end : errors) {
    if (end.at < from || end.at - from > window || end.scope != scope_) continue;
    std::set<std::string> applications;
    for (auto error = errors.rbegin(); error != errors.rend(); ++error) {
      if (error->scope != scope_ || error->at > end.at) continue;
      if (end.at - error->at > window || applications.size() >= rules_.policy.application_error_threshold)
        break;
      if (const auto application = error->application(); !application.empty())
        applications.insert(application);
    }
    if (applications.size() < rules_.policy.application_error_threshold) continue;
    at_ = end.at;
    open_fault(FaultClass::kApplicationRepeat, 0, {});
  }
  at_ = arrived;
}

void EvidenceApplier::operator()(const DriverNotice& notice) {
  const auto as_xid = [&](std::uint64_t code) { on_xid({.source = Source::kDriverEvents, .code = code}); };
  switch (notice.notice) {
    case Notice::kDoubleBitEcc:
      return as_xid(kXidDoubleBit);
    case Notice::kRetirement:
      return as_xid(kXidRetirement);
    case Notice::kRetirementFailure:
      return as_xid(kXidRetirementFailure);
    case Notice::kContainedPoison:
      return as_xid(kXidContained);
    case Notice::kFatalPoison:
      return as_xid(kXidUncontained);
    case Notice::kSingleBitStorm:
      return open_fault(FaultClass::kCorrectableStorm, 0, {});
    // Corrected errors, or changes that a reading reports.
    case Notice::kSingleBitEcc:
    case Notice::kUnavailable:
    case Notice::kRecoveryChanged:
    case Notice::kMigChanged:
    case Notice::kClockChanged:
    case Notice::kPowerChanged:
      return;
  }
}

void EvidenceApplier::operator()(const SwitchFault& fault) {
  if (fault.fatal)
    open_fault(FaultClass::kSwitch, fault.code, {true, false, "SXid " + std::to_string(fault.code)});
}

void EvidenceApplier::operator()(const HandleReading& reading) {
  const auto answer = reading.reachability;
  const bool answers = answer == Reachability::kReachable;
  if (answers && record_.lost) {  // back on the bus: it was reset
    raise_to_now(record_.returned_at);
    raise_to_now(record_.reset_at);
  }
  if (answers || answer == Reachability::kLost) record_.lost = !answers;
  record_check(kCheckHandle, answers);
  const std::pair<FaultClass, Reachability> classes[] = {
      {FaultClass::kLost, Reachability::kLost},
      {FaultClass::kResetRequired, Reachability::kResetRequired},
      {FaultClass::kSilent, Reachability::kSilent},
      {FaultClass::kDriverAway, Reachability::kDriverAway}};
  for (const auto& [fault_class, bad] : classes) {
    if (answers || answer == bad) apply_reading(fault_class, 0, answer == bad, reading.error);
  }
}

void EvidenceApplier::operator()(const RecoveryActionReading& reading) {
  const bool drain = reading.action == 3 || reading.action == 4;
  const std::string what(recovery_action_text(reading.action));
  record_check(kCheckAction, reading.action == 0);
  apply_reading(FaultClass::kRecoveryAction, 0, reading.action != 0 && !drain, what);
  apply_reading(FaultClass::kRecoveryDrain, 0, drain, what);
}

void EvidenceApplier::operator()(const RowRemapReading& reading) {
  const auto& old = record_.remap;
  const bool changed =
      old && (reading.correctable > old->correctable || reading.uncorrectable > old->uncorrectable ||
              (reading.pending && !old->pending));
  record_check(kCheckRemap, !reading.failed && !changed);
  apply_reading(FaultClass::kRowRemapPending, 0, reading.pending);
  apply_reading(FaultClass::kRowRemapFailed, 0, reading.failed);
  record_.remap = reading;
}

void EvidenceApplier::operator()(const RetiredPagesReading& reading) {
  const auto pages = reading.single_bit + reading.double_bit;
  const bool many = pages >= rules_.policy.retired_pages_threshold;
  apply_reading(FaultClass::kRetiredPages, 0, reading.pending || many,
                std::to_string(pages) + (reading.pending ? ", and more at the next reset" : ""));
}

void EvidenceApplier::operator()(const EccReading& reading) {
  std::string where;
  for (std::size_t i = 0; record_.ecc && i < kEccLocationCount; ++i) {
    const auto &count = reading.uncorrected[i], &before = record_.ecc->uncorrected[i];
    if (!count || !before || *count <= *before) continue;
    where += (where.empty() ? "" : ", ") + std::string(enum_name(static_cast<EccLocation>(i)));
  }
  record_check(kCheckEcc, where.empty());
  apply_reading(FaultClass::kEccGrowth, 0, !where.empty(), where);
  apply_reading(FaultClass::kSramThreshold, 0, reading.sram_threshold_exceeded);
  const auto before = std::exchange(record_.ecc, reading);
  for (std::size_t i = 0; before && i < kEccLocationCount; ++i) {
    if (!reading.uncorrected[i]) record_.ecc->uncorrected[i] = before->uncorrected[i];
  }
}

void EvidenceApplier::operator()(const NvLinkReading& reading) {
  bool good = true;
  const std::size_t known_before = record_.links.size();
  std::size_t seen = 0;
  for (const auto& link : reading.links) {
    const auto known = record_.links.find(link.index);
    if (known == record_.links.end()) {
      // A link that never was up is not connected.
      if (link.up) record_.links[link.index] = {true, {at_, link.errors.value_or(0)}};
      continue;
    }
    ++seen;
    known->second.up = link.up;
    good = good && link.up;
    const std::string name = std::to_string(link.index);
    apply_reading(FaultClass::kNvLinkDown, link.index, !link.up, name);
    if (!link.errors) continue;
    const bool noisy =
        exceeds_rate(known->second.errors, *link.errors, rules_.policy.nvlink_errors_per_minute);
    good = good && !noisy;
    apply_reading(FaultClass::kNvLinkErrors, link.index, noisy, name);
  }
  // The state of a link that is missing is unknown: neither a fault nor evidence of health.
  if (!good || seen >= known_before) record_check(kCheckNvLink, good);
}

void EvidenceApplier::operator()(const PcieReading& reading) {
  const auto& old = record_.pcie;
  const auto before = old ? old->replays : std::nullopt;
  if (reading.replays) {
    if (!before) record_.replays = {at_, *reading.replays};
    if (before && *reading.replays < *before) raise_to_now(record_.reset_at);
    apply_reading(FaultClass::kPcieReplays, 0,
                  exceeds_rate(record_.replays, *reading.replays, rules_.policy.pcie_replays_per_minute));
  }
  if (reading.full_width != 0) {
    apply_reading(FaultClass::kPcieWidth, 0, reading.width < reading.full_width,
                  std::to_string(reading.width) + " of " + std::to_string(reading.full_width));
  }
  record_.pcie = reading;
  if (!reading.replays) record_.pcie->replays = before;
}

void EvidenceApplier::operator()(const ViolationReading& reading) {
  const auto& old = record_.violations;
  const bool fell = old && (reading.thermal < old->thermal || reading.power < old->power);
  if (fell) raise_to_now(record_.reset_at);
  record_.violations = reading;
  // Shares over less than a minute are not meaningful.
  const auto since = at_ - record_.violations_at;
  if (record_.violations_then && !fell && since < std::chrono::minutes(1)) return;
  if (const auto& then = record_.violations_then; then && !fell) {
    const auto held = [&](Duration before, Duration now, unsigned percent) {
      return (now - before) / percent > since / 100;
    };
    apply_reading(FaultClass::kThermal, 0,
                  held(then->thermal, reading.thermal, rules_.policy.thermal_throttle_percent));
    apply_reading(FaultClass::kPower, 0,
                  held(then->power, reading.power, rules_.policy.power_throttle_percent));
  }
  record_.violations_then = reading;
  record_.violations_at = at_;
}

void EvidenceApplier::operator()(const FabricReading& reading) {
  // Registration in progress is no fault: it takes minutes after boot, and a single GPU of an HGX board in a
  // virtual machine works without it. It is no evidence of health either.
  const bool joining = reading.state == FabricState::kJoining;
  record_.fabric = reading.state;
  record_check(kCheckFabric, reading.state == FabricState::kNone || reading.state == FabricState::kHealthy);
  if (!joining)
    apply_reading(FaultClass::kFabric, 0, reading.state == FabricState::kFailed, "registration failed");
  apply_reading(FaultClass::kFabricDegraded, 0, joining || reading.state == FabricState::kDegraded,
                joining ? "registration is in progress" : "less bandwidth, or accesses that time out");
}

void EvidenceApplier::operator()(const EnergyReading& reading) {
  if (record_.energy && reading.millijoules < record_.energy->millijoules) raise_to_now(record_.reset_at);
  record_.energy = reading;
}

void EvidenceApplier::operator()(const ProbeReading& reading) {
  record_check(kCheckProbe, reading.passed);
  scope_ = {scope_.gpu};
  apply_reading(FaultClass::kProbeFailed, 0, !reading.passed, reading.error);
  // A failed one may not have come to the copies.
  if (reading.passed || !reading.slow.empty())
    apply_reading(FaultClass::kSlowCopies, 0, !reading.slow.empty(), reading.slow);
}

void EvidenceApplier::operator()(const OperatorCommand& command) {
  if (command.action == OperatorAction::kCordon)
    return open_fault(FaultClass::kCordoned, 0, {.detail = command.reason});
  for (auto& [key, fault] : record_.faults) {
    if (!scope_.covers(key.scope) || fault.condition_met_at) continue;
    // It vouches for repairs of earlier faults, and ends a cordon.
    const bool counts =
        key.fault_class == FaultClass::kCordoned ? at_ >= fault.last_seen : at_ > fault.last_seen;
    const auto& rule = fault_rule(key.fault_class);
    // A preflight that runs no more proves nothing either.
    const bool is_of_absent_probe =
        rule.source == Source::kProbe && record_.is_source_unavailable(rule.source);
    if (counts && (rule.condition != RecoveryCondition::kReadingClear || is_of_absent_probe))
      fault.condition_met_at = at_;
  }
  opened_fault_ = true;  // persist it
}

}  // namespace

EvidenceEffect apply_evidence(GpuRecord& record, const Evidence& evidence, const RuleInputs& rules) {
  const auto source = source_of(evidence.body);
  auto& track = record.sources[static_cast<std::size_t>(source)];
  const bool is_pushed = source == Source::kDriverEvents || source == Source::kKernelLog ||
                         source == Source::kOperator || source == Source::kProcesses;
  const auto* notice = std::get_if<SourceNotice>(&evidence.body);
  // Drop a reading that was overtaken by a newer one.
  if (!is_pushed && track.reported && evidence.at < track.last) return {.changes_no_status = true};
  if (notice != nullptr) {
    if (!track.unavailable) track.unavailable_since = evidence.at;
    track.unavailable = notice->unavailable;
    track.awaited = notice->unavailable && notice->transient && track.reported &&
                    evidence.at - track.unavailable_since < kTransientLimit;
    track.reported = track.reported || !notice->unavailable;
    return {};
  }
  const bool known = record.has_source_reported(source);
  EvidenceApplier applier(record, {normalize_scope(evidence.scope), evidence.at, {}}, rules);
  std::visit(applier, evidence.body);
  track.unavailable.reset();
  track.awaited = false;
  track.reported = true;
  track.last = std::max(track.last, evidence.at);
  const bool is_repeated = source == Source::kDriverEvents || source == Source::kKernelLog;
  return {applier.opened_fault(),
          is_repeated && known && !applier.opened_fault() && !applier.renewed_fault()};
}

}  // namespace gpulet::health
