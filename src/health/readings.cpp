// What one piece of evidence does to a GPU's record.
#include <algorithm>

#include "health/record.h"

namespace gpulet::health {
namespace {

// An event and a line of the log that are no further apart are of one XID.
constexpr Duration kSameEvent = std::chrono::seconds(1);
constexpr std::uint64_t kXidDoubleBit = 48, kXidRetirement = 63, kXidRetirementFailure = 64,
                        kXidFallenOff = 79, kXidContained = 94, kXidUncontained = 95,
                        kXidRecoveryAction = 154;

class Taker {
 public:
  Taker(Record& record, const Evidence& evidence, const Rules& rules)
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
  void operator()(const InforomReading& reading) { over(FaultClass::kInforom, 0, !reading.valid); }
  void operator()(const ProcessReading& reading) { record_.processes[scope_] = {at_, reading.count}; }
  void operator()(const EnergyReading& reading);
  void operator()(const ProbeReading& reading);
  void operator()(const ResetDone&) { latest(record_.reset_at); }
  void operator()(const OperatorWish& wish);
  void operator()(const SourceNotice&) {}

  bool opened() const { return opened_; }
  bool renewed() const { return renewed_; }

 private:
  struct Seen {
    bool in_log = false;
    bool linked = false;
    std::string detail;
  };
  void on_xid(const XidReport& report);
  void add_error(const XidReport& report);
  void count_errors(Time from);
  void observe(FaultClass fault_class, std::uint64_t code, const Seen& seen);
  // A reading: `bad` opens or renews the fault, otherwise it is proved to be over.
  void over(FaultClass fault_class, std::uint64_t code, bool bad, std::string detail = {});
  void check(unsigned bit, bool passes);
  void latest(std::optional<Time>& moment) { moment = std::max(moment.value_or(at_), at_); }
  // More than `limit` a minute, or at once, since the track's minute began.
  bool too_fast(RateTrack& track, std::uint64_t value, unsigned limit) const;

  Record& record_;
  const Rules& rules_;
  Scope scope_;
  Time at_;
  bool opened_ = false;
  bool renewed_ = false;  // what was proved is no longer
};

void Taker::observe(FaultClass fault_class, std::uint64_t code, const Seen& seen) {
  if (rules_.policy.effect(fault_class) == Effect::kIgnore) return;
  FaultKey key{fault_class, code, rule_of(fault_class).whole_gpu ? Scope{scope_.gpu} : scope_};
  if (record_.faults.size() >= kMaxFaults && !record_.faults.contains(key))
    key = {fault_class, 0, {scope_.gpu}};
  const auto [found, fresh] = record_.faults.try_emplace(key);
  auto& fault = found->second;
  if (fresh) {
    fault.opened = fault.last_seen = at_;
    fault.detail = seen.detail;
    opened_ = true;
  }
  fault.opened = std::min(fault.opened, at_);
  if (at_ > fault.last_seen || (at_ == fault.last_seen && seen.detail > fault.detail))
    fault.detail = seen.detail;
  if (at_ > fault.last_seen) {  // whatever was proved was proved of what came before
    fault.last_seen = at_;
    renewed_ = renewed_ || fault.proved;
    fault.proved.reset();
    fault.good_last.reset();
  }
  fault.linked = fault.linked || seen.linked;
  ++(seen.in_log ? fault.lines : fault.events);
}

void Taker::over(FaultClass fault_class, std::uint64_t code, bool bad, std::string detail) {
  if (bad) return observe(fault_class, code, {.detail = std::move(detail)});
  const auto found = record_.faults.find({fault_class, code, Scope{scope_.gpu}});
  if (found == record_.faults.end() || at_ <= found->second.last_seen) return;
  auto& fault = found->second;
  if (!fault.proved) fault.proved = at_;
  fault.good_last = at_;
}

void Taker::check(unsigned bit, bool passes) {
  unsigned index = 0;
  while ((bit >> index) != 1u) ++index;
  auto& track = record_.checks[index];
  if (passes && !track.passing) track.since = at_;
  track.heard = true;
  track.passing = passes;
  track.last = at_;
}

bool Taker::too_fast(RateTrack& track, std::uint64_t value, unsigned limit) const {
  const double minutes = std::chrono::duration<double, std::ratio<60>>(at_ - track.at).count();
  const bool fast = value > track.value && static_cast<double>(value - track.value) >
                                               static_cast<double>(limit) * std::max(minutes, 1.0);
  if (fast || minutes >= 1.0 || value < track.value) track = {at_, value};
  return fast;
}

void Taker::on_xid(const XidReport& report) {
  const auto choice = rules_.filter.choice(report.code);
  if (choice == XidFilter::Choice::kIgnored) return;
  const bool in_log = report.source == Source::kKernelLog;
  if (report.code == kXidRecoveryAction && report.recovery_action.value_or(0) != 0) {
    const unsigned action = *report.recovery_action;
    const bool drain = action == 3 || action == 4;
    return observe(drain ? FaultClass::kRecoveryDrain : FaultClass::kRecoveryAction, 0,
                   {in_log, false, std::string(describe_recovery_action(action))});
  }
  const auto verdict = judge_xid(report.code, report.nvlink5, record_.driver_branch);
  const bool withdraws = verdict.fault && rules_.policy.effect(*verdict.fault) >= Effect::kDrain;
  if (choice == XidFilter::Choice::kWatched && !withdraws) {
    return observe(FaultClass::kXidWatched, report.code, {in_log, verdict.linked, {}});
  }
  if (verdict.application) add_error(report);
  if (!verdict.fault) return;
  if (verdict.follows_driver) {
    const bool line_to_come =
        verdict.fault == FaultClass::kXidNvLink && !in_log && record_.heard(Source::kKernelLog);
    if (line_to_come || record_.heard(Source::kRecoveryAction)) return;
  }
  observe(*verdict.fault, report.code, {in_log, verdict.linked, {}});
}

void Taker::add_error(const XidReport& report) {
  const bool line = report.source == Source::kKernelLog;
  ApplicationError error{at_, report.code, scope_, !line, line, report.pid, report.owner};
  for (auto& known : record_.errors) {
    if (known.code != error.code || known.scope != scope_) continue;
    if (known.at - at_ > kSameEvent || at_ - known.at > kSameEvent) continue;
    const bool has_mine = line ? known.by_line : known.by_event;
    if (has_mine && known.application() == error.application()) return;  // a storm of one application's
    if (has_mine) continue;
    known.by_event = known.by_line = true;
    if (!known.pid) known.pid = error.pid;
    if (known.owner.empty()) known.owner = error.owner;
    return count_errors(std::min(known.at, at_));
  }
  if (at_ <= record_.errors_cleared) return;
  // Once there were too many, one more within the second is one more.
  const auto open = record_.faults.find({FaultClass::kApplicationRepeat, 0, scope_});
  if (open != record_.faults.end() && at_ >= open->second.last_seen &&
      at_ - open->second.last_seen < kSameEvent) {
    return observe(FaultClass::kApplicationRepeat, 0, {line, false, {}});
  }
  const auto place = std::ranges::upper_bound(record_.errors, at_, {}, &ApplicationError::at);
  record_.errors.insert(place, std::move(error));
  if (record_.errors.size() > kMaxErrors) record_.errors.pop_front();
  count_errors(at_);
}

// Looks at each window that ends at `from` or later and could have it inside.
void Taker::count_errors(Time from) {
  if (rules_.policy.repeat_count == 0) return;
  const auto& errors = record_.errors;
  const auto window = rules_.policy.repeat_window;
  const Time arrived = at_;
  for (const auto& end : errors) {
    if (end.at < from || end.at - from > window || end.scope != scope_) continue;
    std::set<std::string> applications;
    for (auto error = errors.rbegin(); error != errors.rend(); ++error) {
      if (error->scope != scope_ || error->at > end.at) continue;
      if (end.at - error->at > window || applications.size() >= rules_.policy.repeat_count) break;
      if (const auto application = error->application(); !application.empty())
        applications.insert(application);
    }
    if (applications.size() < rules_.policy.repeat_count) continue;
    at_ = end.at;
    observe(FaultClass::kApplicationRepeat, 0, {});
  }
  at_ = arrived;
}

void Taker::operator()(const DriverNotice& notice) {
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
      return observe(FaultClass::kCorrectableStorm, 0, {});
    // Corrected, or a change that a reading tells of.
    case Notice::kSingleBitEcc:
    case Notice::kUnavailable:
    case Notice::kRecoveryChanged:
    case Notice::kMigChanged:
    case Notice::kClockChanged:
    case Notice::kPowerChanged:
      return;
  }
}

void Taker::operator()(const SwitchFault& fault) {
  if (fault.fatal)
    observe(FaultClass::kSwitch, fault.code, {true, false, "SXid " + std::to_string(fault.code)});
}

void Taker::operator()(const HandleReading& reading) {
  const auto answer = reading.answer;
  const bool answers = answer == Answer::kAnswers;
  if (answers && record_.lost) {  // only what was taken off the bus and put back comes back
    latest(record_.returned_at);
    latest(record_.reset_at);
  }
  if (answers || answer == Answer::kLost) record_.lost = !answers;
  check(kCheckHandle, answers);
  const std::pair<FaultClass, Answer> classes[] = {{FaultClass::kLost, Answer::kLost},
                                                   {FaultClass::kResetRequired, Answer::kResetRequired},
                                                   {FaultClass::kSilent, Answer::kSilent},
                                                   {FaultClass::kDriverAway, Answer::kDriverAway}};
  for (const auto& [fault_class, bad] : classes) {
    if (answers || answer == bad) over(fault_class, 0, answer == bad, reading.error);
  }
}

void Taker::operator()(const RecoveryActionReading& reading) {
  const bool drain = reading.action == 3 || reading.action == 4;
  const std::string what(describe_recovery_action(reading.action));
  check(kCheckAction, reading.action == 0);
  over(FaultClass::kRecoveryAction, 0, reading.action != 0 && !drain, what);
  over(FaultClass::kRecoveryDrain, 0, drain, what);
}

void Taker::operator()(const RowRemapReading& reading) {
  const auto& old = record_.remap;
  const bool changed =
      old && (reading.correctable > old->correctable || reading.uncorrectable > old->uncorrectable ||
              (reading.pending && !old->pending));
  check(kCheckRemap, !reading.failed && !changed);
  over(FaultClass::kRowRemapPending, 0, reading.pending);
  over(FaultClass::kRowRemapFailed, 0, reading.failed);
  record_.remap = reading;
}

void Taker::operator()(const RetiredPagesReading& reading) {
  const auto pages = reading.single_bit + reading.double_bit;
  const bool many = pages >= rules_.policy.retired_pages;
  over(FaultClass::kRetiredPages, 0, reading.pending || many,
       std::to_string(pages) + (reading.pending ? ", and more at the next reset" : ""));
}

void Taker::operator()(const EccReading& reading) {
  std::string where;
  for (std::size_t i = 0; record_.ecc && i < kEccLocations; ++i) {
    if (reading.uncorrected[i] <= record_.ecc->uncorrected[i]) continue;
    where += (where.empty() ? "" : ", ") + std::string(name(static_cast<EccLocation>(i)));
  }
  check(kCheckEcc, where.empty());
  over(FaultClass::kEccGrowth, 0, !where.empty(), where);
  over(FaultClass::kSramThreshold, 0, reading.sram_threshold_exceeded);
  record_.ecc = reading;
}

void Taker::operator()(const NvLinkReading& reading) {
  bool good = true;
  std::set<unsigned> seen;
  const auto judge_link = [&](unsigned index, bool up, bool noisy) {
    good = good && up && !noisy;
    over(FaultClass::kNvLinkDown, index, !up, std::to_string(index));
    over(FaultClass::kNvLinkErrors, index, noisy, std::to_string(index));
  };
  for (const auto& link : reading.links) {
    seen.insert(link.index);
    const auto known = record_.links.find(link.index);
    if (known == record_.links.end()) {
      // One that never was up is not connected.
      if (link.up) record_.links[link.index] = {true, {at_, link.errors}};
      continue;
    }
    known->second.up = link.up;
    const bool noisy = too_fast(known->second.errors, link.errors, rules_.policy.nvlink_errors_per_minute);
    judge_link(link.index, link.up, noisy);
  }
  for (const auto& [index, track] : record_.links) {
    if (!seen.contains(index)) judge_link(index, false, false);
  }
  check(kCheckNvLink, good);
}

void Taker::operator()(const PcieReading& reading) {
  const auto& old = record_.pcie;
  if (!old) record_.replays = {at_, reading.replays};
  if (old && reading.replays < old->replays) latest(record_.reset_at);
  over(FaultClass::kPcieReplays, 0,
       too_fast(record_.replays, reading.replays, rules_.policy.pcie_replays_per_minute));
  over(FaultClass::kPcieWidth, 0, reading.width < reading.full_width,
       std::to_string(reading.width) + " of " + std::to_string(reading.full_width));
  record_.pcie = reading;
}

void Taker::operator()(const ViolationReading& reading) {
  const auto& old = record_.violations;
  const bool fell = old && (reading.thermal < old->thermal || reading.power < old->power);
  if (fell) latest(record_.reset_at);
  record_.violations = reading;
  // A share of less than a minute says little.
  const auto since = at_ - record_.violations_at;
  if (record_.violations_then && !fell && since < std::chrono::minutes(1)) return;
  if (const auto& then = record_.violations_then; then && !fell) {
    const auto held = [&](Duration before, Duration now, unsigned percent) {
      return (now - before) / percent > since / 100;
    };
    over(FaultClass::kThermal, 0, held(then->thermal, reading.thermal, rules_.policy.thermal_percent));
    over(FaultClass::kPower, 0, held(then->power, reading.power, rules_.policy.power_percent));
  }
  record_.violations_then = reading;
  record_.violations_at = at_;
}

void Taker::operator()(const FabricReading& reading) {
  const bool joining = reading.state == FabricState::kJoining;
  const bool out = joining || reading.state == FabricState::kFailed;
  check(kCheckFabric, reading.state == FabricState::kNone || reading.state == FabricState::kHealthy);
  over(FaultClass::kFabric, 0, out, joining ? "it is registering" : "it failed");
  over(FaultClass::kFabricDegraded, 0, reading.state == FabricState::kDegraded);
}

void Taker::operator()(const EnergyReading& reading) {
  if (record_.energy && reading.millijoules < record_.energy->millijoules) latest(record_.reset_at);
  record_.energy = reading;
}

void Taker::operator()(const ProbeReading& reading) {
  check(kCheckProbe, reading.passed);
  scope_ = {scope_.gpu};
  over(FaultClass::kProbeFailed, 0, !reading.passed, reading.error);
}

void Taker::operator()(const OperatorWish& wish) {
  if (wish.wish == Wish::kCordon) return observe(FaultClass::kCordoned, 0, {.detail = wish.words});
  for (auto& [key, fault] : record_.faults) {
    if (!scope_.covers(key.scope) || fault.proved) continue;
    // It vouches for what came before it; of a cordon it is the end.
    const bool counts =
        key.fault_class == FaultClass::kCordoned ? at_ >= fault.last_seen : at_ > fault.last_seen;
    if (counts && rule_of(key.fault_class).want != Want::kReading) fault.proved = at_;
  }
  opened_ = true;  // it is to be kept
}

}  // namespace

Taken take(Record& record, const Evidence& evidence, const Rules& rules) {
  const auto source = source_of(evidence.body);
  auto& track = record.sources[static_cast<std::size_t>(source)];
  const bool told = source == Source::kDriverEvents || source == Source::kKernelLog ||
                    source == Source::kOperator || source == Source::kProcesses;
  const auto* notice = std::get_if<SourceNotice>(&evidence.body);
  // A reading that was overtaken by a newer one says nothing any more.
  if (!told && track.heard && evidence.at < track.last) return {.quiet = true};
  if (notice != nullptr) {
    track.absent = notice->absent;
    track.heard = track.heard || !notice->absent;
    return {};
  }
  const bool known = record.heard(source);
  Taker taker(record, {normal(evidence.scope), evidence.at, {}}, rules);
  std::visit(taker, evidence.body);
  track.absent.reset();
  track.heard = true;
  track.last = std::max(track.last, evidence.at);
  const bool told_again = source == Source::kDriverEvents || source == Source::kKernelLog;
  return {taker.opened(), told_again && known && !taker.opened() && !taker.renewed()};
}

}  // namespace gpulet::health
