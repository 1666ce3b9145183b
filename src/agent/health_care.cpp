#include "agent/health_care.h"

#include <algorithm>

#include "base/log.h"

namespace gpulet::agent {
namespace {

using health::Answer;
using health::Evidence;

health::XidFilter filter_of(const config::Config& config) {
  health::XidFilter filter(config.flags.disable_healthchecks, config.flags.enable_healthchecks);
  for (const auto& warning : filter.warnings()) log::warning(warning);
  return filter;
}

void append(HealthChanges& changes, HealthChanges more) {
  changes.insert(changes.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// One device may change several times in a round: what was first, and what is now.
void merge(HealthChanges& changes) {
  HealthChanges merged;
  for (auto& change : changes) {
    const auto known = std::ranges::find(merged, change.device, &health::Change::device);
    if (known == merged.end()) {
      merged.push_back(std::move(change));
    } else {
      known->after = std::move(change.after);
    }
  }
  std::erase_if(merged, [](const auto& change) {
    return change.before.state == change.after.state && change.before.reason == change.after.reason;
  });
  changes = std::move(merged);
}

// Whether the driver should be asked at once what it makes of it.
bool wants_a_poll(const health::Body& body) {
  const auto* notice = std::get_if<health::DriverNotice>(&body);
  if (notice == nullptr) return std::holds_alternative<health::ResetDone>(body);
  return notice->notice == health::Notice::kRecoveryChanged ||
         notice->notice == health::Notice::kUnavailable || notice->notice == health::Notice::kDoubleBitEcc;
}

}  // namespace

HealthCare::HealthCare(HealthPorts ports, const config::Config& config)
    : ports_(std::move(ports)),
      filter_(filter_of(config)),
      machine_(config.gpulet.health, filter_),
      polls_(ports_.loop, ports_.driver, [this](const auto& evidence) { on_answer(evidence); }),
      keeper_(ports_.loop, ports_.memory, machine_) {
  keeper_.restore();
}

HealthCare::~HealthCare() = default;

bool HealthCare::apply(const config::Config& config) {
  machine_.set_policy(config.gpulet.health);
  filter_ = filter_of(config);
  machine_.set_filter(filter_);
  return end_round(machine_.advance(ports_.loop.now()));
}

bool HealthCare::on_snapshot(const inventory::Snapshot& snapshot) {
  snapshot_ = snapshot;
  auto changes = machine_.on_snapshot(snapshot, ports_.loop.now());
  for (const auto& gpu : snapshot.gpus) {
    answering_[gpu.uuid] = !gpu.unreadable;
    append(changes, tell_sources(gpu.uuid));
  }
  std::erase_if(answering_, [&](const auto& known) { return snapshot.find(known.first) == nullptr; });
  polls_.follow(snapshot);
  return end_round(std::move(changes), !std::exchange(known_, true));
}

void HealthCare::driver_away() { polls_.pause(); }

void HealthCare::take(const Evidence& evidence) {
  if (wants_a_poll(evidence.body)) polls_.poll_soon(evidence.scope.gpu);
  const bool source = std::holds_alternative<health::SourceNotice>(evidence.body);
  const auto before = source ? machine_.absences(evidence.scope.gpu) : std::vector<health::Absence>();
  auto changes = machine_.on_evidence(evidence);
  const bool wish = std::holds_alternative<health::OperatorWish>(evidence.body);
  end_round(std::move(changes), wish || (source && machine_.absences(evidence.scope.gpu) != before));
}

void HealthCare::take(const health::FaultLine& line) {
  HealthChanges changes;
  for (const auto& evidence : evidence_of(line, snapshot_, ports_.loop.now())) {
    append(changes, machine_.on_evidence(evidence));
  }
  end_round(std::move(changes));
}

void HealthCare::kernel_log(std::optional<std::string> absent) {
  kernel_log_ = health::SourceNotice{health::Source::kKernelLog, std::move(absent)};
  HealthChanges changes;
  for (const auto& gpu : snapshot_.gpus) append(changes, tell_sources(gpu.uuid));
  end_round(std::move(changes), true);
}

// Those that are the same for every GPU.
HealthChanges HealthCare::tell_sources(const DeviceUuid& gpu) {
  const auto now = ports_.loop.now();
  auto changes = machine_.on_evidence(
      {{gpu}, now, health::SourceNotice{health::Source::kProbe, "this version has no test program"}});
  if (kernel_log_) append(changes, machine_.on_evidence({{gpu}, now, *kernel_log_}));
  return changes;
}

void HealthCare::on_answer(const Driver::Evidence& evidence) {
  if (evidence.empty()) return;
  const auto& gpu = evidence.front().scope.gpu;
  const auto before = machine_.absences(gpu);
  HealthChanges changes;
  for (const auto& one : evidence) {
    if (const auto* handle = std::get_if<health::HandleReading>(&one.body)) look_at(one.scope.gpu, *handle);
    append(changes, machine_.on_evidence(one));
  }
  append(changes, machine_.advance(ports_.loop.now()));
  end_round(std::move(changes), machine_.absences(gpu) != before);
}

// A GPU that was lost, or is back, may be another one, or cut up otherwise.
void HealthCare::look_at(const DeviceUuid& gpu, const health::HandleReading& handle) {
  const auto* there = snapshot_.find(gpu);
  if (there == nullptr) return;
  const bool answers = handle.answer == Answer::kAnswers;
  const bool before = std::exchange(answering_[gpu], answers);
  if (answers ? there->unreadable.has_value() : !there->unreadable && before) ports_.reread();
}

bool HealthCare::end_round(HealthChanges changes, bool tell_anyway) {
  // What came before the first reading is told with it.
  HealthChanges all = std::exchange(untold_, {});
  append(all, std::move(changes));
  changes = std::move(all);
  merge(changes);
  keeper_.look();
  polls_.plan(machine_.policy(), filter_.nothing_checked(), machine_.suspects(), machine_.next_due());
  if (!known_) {
    untold_ = std::move(changes);
    return false;
  }
  // Also what changes no device's state: one fault more or less of a device that has others, and when it is
  // due.
  const auto revision = machine_.revision();
  const auto due = machine_.next_due();
  const bool differs = revision != std::exchange(told_revision_, revision) || due != told_due_;
  told_due_ = due;
  if (changes.empty() && !differs && !tell_anyway) return false;
  const bool first = view_ == nullptr;
  view_ = std::make_shared<const health::View>(
      view_of(machine_, snapshot_, {ports_.loop.now(), ports_.loop.wall_now()}));
  if (ports_.changed) ports_.changed(view_, changes);
  return first || !changes.empty();
}

}  // namespace gpulet::agent
