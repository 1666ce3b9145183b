// What holds for every sequence of evidence, against an oracle that knows nothing of how the machine works:
// it looks back over the log of all that was sent.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "health/state/persisted_state.h"
#include "health/state/test_feed.h"

namespace gpulet::health {
namespace {

const std::array<Scope, 6> kScopes = {make_scope("GPU-0"),       make_scope("GPU-1"),
                                      make_scope("GPU-1", 1),    make_scope("GPU-1", 1, 1),
                                      make_scope("GPU-1", 2, 0), make_scope("GPU-1", 1, 0)};
const std::array<Duration, 8> kSteps = {Duration::zero(), milliseconds(300), seconds(1),  seconds(3),
                                        seconds(10),      seconds(16),       seconds(31), minutes(11)};

// An environment with random evidence from a seed, which keeps the log.
class World {
 public:
  explicit World(bool with_cordons = false) : with_cordons_(with_cordons) {}

  // One number is one piece of evidence, some time after the one before.
  Evidence next_evidence(std::uint32_t number, bool advance = true) {
    const auto pick = [&](std::uint32_t of) {
      const auto choice = number % of;
      number /= of;
      return choice;
    };
    if (advance) feed.pass_time(kSteps[pick(kSteps.size())]);
    const auto about = kScopes[pick(kScopes.size())];
    return {about, feed.now, body(about, pick(with_cordons_ ? 20 : 18), pick(4))};
  }

  EccReading errors_now(const Scope& about) { return ecc_[about.gpu]; }

  HealthFeed feed;

 private:
  EvidenceBody body(const Scope& about, std::uint32_t kind, std::uint32_t detail) {
    const bool bad = detail == 0;
    auto& ecc = ecc_[about.gpu];
    switch (kind) {
      case 0:
        return XidReport{Source::kDriverEvents, 95};
      case 1:
        return XidReport{Source::kDriverEvents, 119};
      case 2:
        return XidReport{Source::kKernelLog, 119, detail};
      case 3:
        return XidReport{Source::kDriverEvents, 999};
      case 4:
        return XidReport{Source::kKernelLog, 31, detail};
      case 5:
        return DriverNotice{Notice::kDoubleBitEcc};
      case 6:
        return FallenOff{};
      case 7:
        return ResetDone{};
      case 8:
        return ProcessReading{detail};
      case 9:
      case 10:
        return HandleReading{bad ? Reachability::kLost : Reachability::kReachable, bad ? "lost" : ""};
      case 11:
      case 12:
        return RecoveryActionReading{bad ? 1u : 0u};
      case 13:
      case 14:
        if (bad) ++*ecc.uncorrected[0];
        return ecc;
      case 15:
      case 16:
        return RowRemapReading{false, bad, 0, 0};
      case 17:
        return DriverNotice{Notice::kClockChanged};
      default:
        return OperatorCommand{detail < 2 ? OperatorAction::kCordon : OperatorAction::kUncordon, ""};
    }
  }

  bool with_cordons_;
  std::map<DeviceUuid, EccReading> ecc_;
};

// ---- the oracle ----

class Log {
 public:
  void add_entry(const Evidence& evidence) { all_.push_back(evidence); }

  // Why the device may not be offered at this moment, by what was sent; empty when it may.
  std::string objection(const Scope& device, Time now) const {
    for (const auto code : {95u, 48u, 79u, 119u, 999u}) {
      const auto broke = last_xid(device, code);
      if (!broke) continue;
      if (now - *broke < seconds(30)) return "an XID is younger than the hold";
      if (code == 999) continue;
      const bool reset = any_since(device, *broke, [](const Evidence& evidence) {
        return std::holds_alternative<ResetDone>(evidence.body);
      });
      const bool word =
          code != 119 && any_since(device, *broke + seconds(2) - Duration(1), [](const Evidence& sent) {
            const auto* action = std::get_if<RecoveryActionReading>(&sent.body);
            return action != nullptr && action->action == 0;
          });
      if (!reset && !word && !returned(device, *broke)) return "nothing proves that XID's remedy";
    }
    return objection_of_checks(device);
  }

 private:
  static bool entries_about(const Evidence& evidence, const Scope& device) {
    return evidence.scope.covers(device) ||
           (evidence.scope.gpu == device.gpu && source_of(evidence.body) != Source::kDriverEvents &&
            source_of(evidence.body) != Source::kKernelLog);
  }
  static std::uint64_t code_of(const Evidence& evidence) {
    if (const auto* xid = std::get_if<XidReport>(&evidence.body)) return xid->code;
    if (std::holds_alternative<FallenOff>(evidence.body)) return 79;
    const auto* notice = std::get_if<DriverNotice>(&evidence.body);
    return notice != nullptr && notice->notice == Notice::kDoubleBitEcc ? 48 : 0;
  }
  std::optional<Time> last_xid(const Scope& device, std::uint64_t code) const {
    std::optional<Time> last;
    for (const auto& evidence : all_) {
      const bool whole = code == 79 && evidence.scope.gpu == device.gpu;
      if (code_of(evidence) == code && (whole || evidence.scope.covers(device))) last = evidence.at;
    }
    return last;
  }
  template <class Is>
  bool any_since(const Scope& device, Time since, const Is& is) const {
    return std::ranges::any_of(all_, [&](const Evidence& evidence) {
      return entries_about(evidence, device) && evidence.at > since && is(evidence);
    });
  }
  bool returned(const Scope& device, Time since) const {
    bool lost = false;
    for (const auto& evidence : all_) {
      const auto* handle = std::get_if<HandleReading>(&evidence.body);
      if (handle == nullptr || !entries_about(evidence, device)) continue;
      if (handle->reachability == Reachability::kReachable && lost && evidence.at > since) return true;
      lost = handle->reachability == Reachability::kLost;
    }
    return false;
  }
  // Handle, recovery action, ECC and remap must each have passed through the last 30 s, and lately.
  std::string objection_of_checks(const Scope& device) const {
    const Source checks[] = {Source::kHandle, Source::kRecoveryAction, Source::kEcc, Source::kRowRemap};
    for (const auto check : checks) {
      bool passing = false;
      Time since{}, last{};
      std::uint64_t errors = 0;
      for (const auto& evidence : all_) {
        if (evidence.scope.gpu != device.gpu || source_of(evidence.body) != check) continue;
        const bool passes = passes_check(evidence.body, errors);
        if (passes && !passing) since = evidence.at;
        passing = passes;
        last = evidence.at;
      }
      if (!passing) return std::string(enum_name(check)) + " does not pass";
      if (last - since < seconds(30)) return std::string(enum_name(check)) + " has not passed for long";
    }
    return "";
  }
  static bool passes_check(const EvidenceBody& body, std::uint64_t& errors) {
    if (const auto* handle = std::get_if<HandleReading>(&body))
      return handle->reachability == Reachability::kReachable;
    if (const auto* action = std::get_if<RecoveryActionReading>(&body)) return action->action == 0;
    if (const auto* remap = std::get_if<RowRemapReading>(&body)) return !remap->failed;
    const auto& ecc = std::get<EccReading>(body);
    return *ecc.uncorrected[0] <= std::exchange(errors, *ecc.uncorrected[0]);
  }

  std::vector<Evidence> all_;
};

bool is_subject(const Scope& device) { return device.gpu.str() != "GPU-1" || !device.is_whole_gpu(); }

RC_GTEST_PROP(StateMachineProperty, NoDeviceReturnsBeforeItsRecoveryConditionAndChecks,
              (const std::vector<std::uint32_t>& numbers)) {
  World world;
  Log log;
  const auto start = world.feed.now;
  for (const auto* gpu : {"GPU-0", "GPU-1"}) {  // the evidence sent at the start
    const EvidenceBody bodies[] = {HandleReading{}, RecoveryActionReading{}, EccReading{}, RowRemapReading{}};
    for (const auto& body : bodies) log.add_entry({make_scope(gpu), start - seconds(1), body});
  }
  bool returned_to_service = false;
  const auto send = [&](const Evidence& evidence) {
    log.add_entry(evidence);
    for (const auto& change : world.feed.feed(evidence.scope, evidence.body)) {
      if (is_allocatable(change.before.state) || !is_allocatable(change.after.state) ||
          !is_subject(change.device))
        continue;
      returned_to_service = true;
      const auto objection = log.objection(change.device, evidence.at);
      RC_ASSERT(objection == "");
    }
  };
  for (const auto number : numbers) {
    if (number % 6 != 0) {
      send(world.next_evidence(number / 6));
      continue;
    }
    // Now and then, half a minute of good news.
    for (int round = 0; round < 8; ++round) {
      world.feed.pass_time(seconds(5));
      const auto now = world.feed.now;
      for (const auto* gpu : {"GPU-0", "GPU-1"}) {
        send({make_scope(gpu), now, ResetDone{}});
        send({make_scope(gpu), now, HandleReading{}});
        send({make_scope(gpu), now, RecoveryActionReading{}});
        send({make_scope(gpu), now, RowRemapReading{}});
      }
      for (const auto* gpu : {"GPU-0", "GPU-1"})
        send({make_scope(gpu), now, world.errors_now(make_scope(gpu))});
    }
  }
  RC_CLASSIFY(returned_to_service);
}

RC_GTEST_PROP(StateMachineProperty, FaultsDoNotAffectOtherDevices,
              (const std::vector<std::uint32_t>& numbers)) {
  World world;
  const auto target = kScopes[1 + numbers.size() % (kScopes.size() - 1)];
  for (const auto number : numbers) {
    auto evidence = world.next_evidence(number);
    const bool reading =
        source_of(evidence.body) != Source::kDriverEvents && source_of(evidence.body) != Source::kKernelLog;
    const bool whole = reading || std::holds_alternative<FallenOff>(evidence.body);
    if (whole && !target.is_whole_gpu()) continue;  // those are about the GPU
    evidence.scope = target;
    for (const auto& change : world.feed.machine.add_evidence(evidence)) {
      RC_ASSERT(target.covers(change.device));
    }
    for (const auto& [device, status] : world.feed.machine.device_statuses()) {
      if (!target.covers(device)) RC_ASSERT(status.state == DeviceState::kHealthy);
    }
  }
}

RC_GTEST_PROP(StateMachineProperty, TimeNeverGoesBack,
              (const std::vector<std::pair<std::uint32_t, std::uint8_t>>& numbers)) {
  World world(true);
  std::map<Scope, Time> since;
  for (const auto& [number, late] : numbers) {
    auto evidence = world.next_evidence(number);
    evidence.at -= milliseconds(100) * (late % 50);  // some evidence arrives late
    for (const auto& change : world.feed.machine.add_evidence(evidence)) {
      RC_ASSERT(change.after.since >= change.before.since);
    }
    for (const auto& [device, status] : world.feed.machine.device_statuses()) {
      RC_ASSERT(status.since >= since[device]);
      RC_ASSERT(status.since <= world.feed.now);
      since[device] = status.since;
      for (const auto& fault : status.faults) RC_ASSERT(fault.opened <= fault.last_seen);
      RC_ASSERT(status.reason.empty() == status.faults.empty());
    }
  }
}

// A device's state and its faults, as text.
std::string summarize_machine(const HealthStateMachine& machine) {
  std::string out;
  for (const auto& [device, status] : machine.device_statuses()) {
    std::vector<std::string> faults;
    for (const auto& fault : status.faults) {
      faults.push_back(fault.fault_text() + (fault.condition_met_at ? "+" : "-") +
                       std::to_string(fault.scope.gpu_instance));
    }
    std::ranges::sort(faults);
    out += device.gpu.str() + " " + std::to_string(device.gpu_instance) + " " +
           std::string(enum_name(status.state)) + " " + std::to_string(status.relapses) + " " +
           text::join(faults, ", ") + "\n";
  }
  return out;
}

RC_GTEST_PROP(StateMachineProperty, TheOrderOfSourcesDoesNotMatter,
              (const std::vector<std::vector<std::uint32_t>>& moments, std::uint32_t shuffle)) {
  World world(true);
  HealthFeed other;
  for (auto moment : moments) {
    moment.resize(std::min<std::size_t>(moment.size(), 10));
    world.feed.pass_time(kSteps[shuffle++ % kSteps.size()]);
    std::vector<Evidence> sent;
    std::set<std::pair<DeviceUuid, Source>> reported;
    for (const auto number : moment) {
      auto evidence = world.next_evidence(number, false);
      // A reading is of one moment: a source that contradicts itself within it is no case.
      const auto source = source_of(evidence.body);
      const bool reading = source != Source::kDriverEvents && source != Source::kKernelLog;
      if (reading && !reported.insert({evidence.scope.gpu, source}).second) continue;
      sent.push_back(std::move(evidence));
    }
    for (const auto& evidence : sent) world.feed.machine.add_evidence(evidence);
    // The same, source by source, in an order of the sources that the number gives; each source's in its own.
    std::ranges::stable_sort(sent, {}, [&](const Evidence& evidence) {
      return (static_cast<std::uint32_t>(source_of(evidence.body)) * 7 + shuffle) % kSourceCount;
    });
    for (const auto& evidence : sent) other.machine.add_evidence(evidence);
    for (auto* machine : {&world.feed.machine, &other.machine}) machine->advance_to(world.feed.now);
    RC_ASSERT(summarize_machine(other.machine) == summarize_machine(world.feed.machine));
  }
}

RC_GTEST_PROP(StateMachineProperty, ARestartEndsNoFault,
              (const std::vector<std::uint32_t>& numbers, bool reboot)) {
  World world(true);
  for (const auto number : numbers) world.feed.machine.add_evidence(world.next_evidence(number));
  auto& old = world.feed.machine;
  const ClockPair then{world.feed.now, WallTime(std::chrono::hours(490'000))};
  const auto saved = parse_persisted_state(format_persisted_state(old.to_persisted_state(then, "boot-1")));
  RC_ASSERT(saved.has_value());

  HealthStateMachine machine({}, XidFilter("", ""));
  const ClockPair now{Time(seconds(3)), then.wall + seconds(20)};
  machine.restore_state(*saved, reboot ? "boot-2" : "boot-1", now);
  machine.apply_snapshot(world.feed.there, now.now);
  for (const auto& [device, status] : old.device_statuses()) {
    const auto after = machine.device_status(device);
    RC_ASSERT(after.has_value());
    if (!is_allocatable(status.state)) RC_ASSERT(!is_allocatable(after->state));
    if (!is_allocatable(status.state)) RC_ASSERT(after->since <= now.now);
    RC_ASSERT(after->relapses == status.relapses);
  }
}

}  // namespace
}  // namespace gpulet::health
