#include "agent/health/health_controller.h"

#include <algorithm>
#include <optional>

#include "base/log.h"

namespace gpulet::agent {
namespace {

using health::DeviceState;
using health::StatusChange;
using Severity = Reporter::Severity;

bool have_same_status(const StatusChange& a, const StatusChange& b) {
  return a.before.state == b.before.state && a.after.state == b.after.state &&
         a.after.reason == b.after.reason;
}

// A MIG device that only shares its GPU's change.
bool is_covered_by_gpu(const StatusChange& change, const std::vector<StatusChange>& changes) {
  if (change.device.is_whole_gpu()) return false;
  return std::ranges::any_of(changes, [&](const StatusChange& other) {
    return other.device.is_whole_gpu() && other.device.gpu == change.device.gpu &&
           have_same_status(other, change);
  });
}

// Still withdrawn by the same fault, whose text changed: a call that has hung longer.
bool is_only_reason_change(const StatusChange& change) {
  if (change.before.state != change.after.state) return false;
  const auto& before = change.before.faults;
  const auto& after = change.after.faults;
  return !before.empty() && !after.empty() && before.front().fault_class == after.front().fault_class &&
         before.front().code == after.front().code;
}

// For a device that is not allocatable after the change.
HealthEvent withdrawn_event(const std::string& device, const StatusChange& change) {
  const auto& after = change.after;
  if (after.state == DeviceState::kRecovering) {
    return {Severity::kNormal, "GPURecovering",
            device + " is recovering from " + after.reason + ": returns to service " + after.recovery_text,
            change.device};
  }
  if (is_allocatable(change.before.state)) {
    return {Severity::kWarning, "GPUUnhealthy", device + " is withdrawn: " + after.reason, change.device,
            true};
  }
  return {Severity::kWarning, "GPUHealthChanged",
          device + " is still withdrawn, " + std::string(enum_name(after.state)) + ": " + after.reason,
          change.device};
}

std::optional<HealthEvent> allocatable_event(const std::string& device, const StatusChange& change) {
  const auto& after = change.after;
  const bool back = !is_allocatable(change.before.state);
  if (after.state == DeviceState::kDegraded) {
    return HealthEvent{
        Severity::kWarning, "GPUDegraded",
        device + (back ? " is allocatable again, degraded: " : " is degraded: ") + after.reason,
        change.device};
  }
  if (back) {
    return HealthEvent{Severity::kNormal, "GPUHealthy", device + " is healthy again and allocatable",
                       change.device};
  }
  if (after.state == DeviceState::kUnmonitored) {
    return HealthEvent{Severity::kWarning, "GPUUnmonitored",
                       device + " is allocatable, but no source would report a fault", change.device};
  }
  if (change.before.state == DeviceState::kUnmonitored) return std::nullopt;
  return HealthEvent{Severity::kNormal, "GPUHealthy", device + " is healthy again", change.device};
}

}  // namespace

std::vector<HealthEvent> health_events(const health::HealthView& view,
                                       const std::vector<StatusChange>& changes) {
  std::vector<HealthEvent> events;
  for (const auto& change : changes) {
    const auto* device = view.find(change.device);
    if (device == nullptr || !device->gpu_index || is_covered_by_gpu(change, changes)) continue;
    const auto words = describe_device(*device);
    if (!is_allocatable(change.after.state)) {
      if (is_only_reason_change(change)) continue;
      events.push_back(withdrawn_event(words, change));
    } else if (auto event = allocatable_event(words, change)) {
      events.push_back(std::move(*event));
    }
  }
  return events;
}

namespace {

using health::Evidence;
using health::Reachability;

health::XidFilter filter_of(const config::Config& config) {
  health::XidFilter filter(config.flags.disable_healthchecks, config.flags.enable_healthchecks);
  for (const auto& warning : filter.warnings()) log::warning(warning);
  return filter;
}

void append_changes(HealthChanges& changes, HealthChanges more) {
  changes.insert(changes.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

// A device that changed several times in a round: its first and its last status.
void merge_changes(HealthChanges& changes) {
  HealthChanges merged;
  for (auto& change : changes) {
    const auto known = std::ranges::find(merged, change.device, &health::StatusChange::device);
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

// Whether to poll the driver immediately.
bool needs_poll(const health::EvidenceBody& body) {
  const auto* notice = std::get_if<health::DriverNotice>(&body);
  if (notice == nullptr) return std::holds_alternative<health::ResetDone>(body);
  return notice->notice == health::Notice::kRecoveryChanged ||
         notice->notice == health::Notice::kUnavailable || notice->notice == health::Notice::kDoubleBitEcc;
}

}  // namespace

HealthController::HealthController(HealthControllerPorts ports, const config::Config& config)
    : ports_(std::move(ports)),
      filter_(filter_of(config)),
      machine_(config.gpulet.health, filter_),
      poller_(ports_.loop, ports_.driver, [this](const auto& evidence) { on_poll_result(evidence); }),
      saver_(ports_.loop, ports_.store, machine_, ports_.on_save_error) {
  saver_.restore_machine();
}

HealthController::~HealthController() = default;

bool HealthController::apply_health_config(const config::Config& config) {
  machine_.set_policy(config.gpulet.health);
  filter_ = filter_of(config);
  machine_.set_filter(filter_);
  return end_round(machine_.advance_to(ports_.loop.now()));
}

namespace {

std::map<DeviceUuid, std::string> excluded_in(const inventory::Snapshot& snapshot) {
  std::map<DeviceUuid, std::string> excluded;
  for (const auto& gpu : snapshot.gpus) {
    if (!gpu.excluded.empty()) excluded[gpu.uuid] = gpu.excluded;
  }
  return excluded;
}

std::map<DeviceUuid, bool> pending_modes(const inventory::Snapshot& snapshot) {
  std::map<DeviceUuid, bool> modes;
  for (const auto& gpu : snapshot.gpus) {
    if (gpu.mig_pending) modes[gpu.uuid] = *gpu.mig_pending;
  }
  return modes;
}

}  // namespace

bool HealthController::on_new_snapshot(const inventory::Snapshot& snapshot) {
  const bool differs =
      pending_modes(snapshot) != pending_modes(snapshot_) || excluded_in(snapshot) != excluded_in(snapshot_);
  snapshot_ = snapshot;
  auto changes = machine_.apply_snapshot(snapshot, ports_.loop.now());
  const auto without_mig_events = without_mig_events_;
  for (const auto& gpu : snapshot.gpus) {
    reachable_[gpu.uuid] = !gpu.unreadable;
    append_changes(changes, report_event_sources(gpu.uuid));
  }
  const auto is_gone = [&](const DeviceUuid& gpu) { return snapshot.find(gpu) == nullptr; };
  std::erase_if(without_mig_events_, is_gone);
  std::erase_if(polled_, is_gone);
  std::erase_if(reachable_, [&](const auto& known) { return snapshot.find(known.first) == nullptr; });
  poller_.set_gpus(snapshot);
  const bool first = !std::exchange(has_snapshot_, true);
  return end_round(std::move(changes), first || differs || without_mig_events_ != without_mig_events);
}

void HealthController::on_excluded_marked(const inventory::Snapshot& snapshot) {
  if (excluded_in(snapshot) == excluded_in(snapshot_)) return;
  snapshot_ = snapshot;
  if (view_) publish_view({});
}

void HealthController::on_driver_unavailable() { poller_.pause_polling(); }

void HealthController::set_driver_release(std::optional<health::DriverRelease> release) {
  if (release == release_) return;
  release_ = std::move(release);
  // Whoever requested it waits for it, also where no GPU was ever read.
  has_snapshot_ ? static_cast<void>(end_round({}, true)) : publish_view({});
}

void HealthController::set_repair_notes(std::map<DeviceUuid, std::string> notes) {
  if (notes == repair_notes_) return;
  repair_notes_ = std::move(notes);
  if (view_) publish_view({});
}

void HealthController::add_evidence(const Evidence& evidence) {
  // Registered events include none of the instances.
  const auto* registered = std::get_if<health::SourceNotice>(&evidence.body);
  if (registered != nullptr && registered->source == health::Source::kDriverEvents &&
      !registered->unavailable && lacks_mig_events(evidence.scope.gpu)) {
    without_mig_events_.insert(evidence.scope.gpu);
    return add_evidence({evidence.scope, evidence.at,
                         health::SourceNotice{health::Source::kDriverEvents, mig_events_absent_}});
  }
  if (needs_poll(evidence.body)) poller_.poll_soon(evidence.scope.gpu);
  const bool source = std::holds_alternative<health::SourceNotice>(evidence.body);
  const auto before =
      source ? machine_.unavailable_sources(evidence.scope.gpu) : std::vector<health::UnavailableSource>();
  auto changes = machine_.add_evidence(evidence);
  const bool command = std::holds_alternative<health::OperatorCommand>(evidence.body);
  end_round(std::move(changes),
            command || (source && machine_.unavailable_sources(evidence.scope.gpu) != before));
}

void HealthController::add_evidence(const health::FaultLine& line) {
  HealthChanges changes;
  for (const auto& evidence : kmsg_line_evidence(line, snapshot_, ports_.loop.now())) {
    append_changes(changes, machine_.add_evidence(evidence));
  }
  end_round(std::move(changes));
}

void HealthController::set_kernel_log_source(std::optional<std::string> absent) {
  kernel_log_ = health::SourceNotice{health::Source::kKernelLog, std::move(absent)};
  HealthChanges changes;
  for (const auto& gpu : snapshot_.gpus) append_changes(changes, report_event_sources(gpu.uuid));
  end_round(std::move(changes), true);
}

void HealthController::set_mig_event_source(std::optional<std::string> absent) {
  if (absent == mig_events_absent_) return;
  mig_events_absent_ = std::move(absent);
  HealthChanges changes;
  for (const auto& gpu : snapshot_.gpus) append_changes(changes, report_event_sources(gpu.uuid));
  end_round(std::move(changes), true);
}

void HealthController::set_preflights(Preflights preflights) {
  if (preflights == preflights_) return;
  preflights_ = std::move(preflights);
  HealthChanges changes;
  for (const auto& gpu : snapshot_.gpus) append_changes(changes, report_event_sources(gpu.uuid));
  end_round(std::move(changes), true);
}

bool HealthController::lacks_mig_events(const DeviceUuid& gpu) const {
  const auto* found = snapshot_.find(gpu);
  return mig_events_absent_ && found != nullptr && found->mig_enabled && polled_.contains(gpu);
}

HealthChanges HealthController::report_mig_events(const DeviceUuid& gpu) {
  const bool lacks = lacks_mig_events(gpu);
  if (lacks ? !has_driver_events(gpu) : without_mig_events_.erase(gpu) == 0) return {};
  if (lacks) without_mig_events_.insert(gpu);
  const auto reason = lacks ? mig_events_absent_ : std::nullopt;
  return machine_.add_evidence(
      {{gpu}, ports_.loop.now(), health::SourceNotice{health::Source::kDriverEvents, reason}});
}

// Whether the driver's events are received but for those of instances.
bool HealthController::has_driver_events(const DeviceUuid& gpu) const {
  const auto absent = machine_.unavailable_sources(gpu);
  return without_mig_events_.contains(gpu) ||
         std::ranges::find(absent, health::Source::kDriverEvents, &health::UnavailableSource::source) ==
             absent.end();
}

// Sources with the same availability for every GPU, or every GPU in MIG mode.
HealthChanges HealthController::report_event_sources(const DeviceUuid& gpu) {
  const auto now = ports_.loop.now();
  const auto probe = preflights_.gpus.find(gpu);
  auto changes = machine_.add_evidence(
      {{gpu},
       now,
       health::SourceNotice{health::Source::kProbe,
                            probe == preflights_.gpus.end() ? preflights_.absent : probe->second.absent}});
  if (kernel_log_) append_changes(changes, machine_.add_evidence({{gpu}, now, *kernel_log_}));
  append_changes(changes, report_mig_events(gpu));
  return changes;
}

void HealthController::on_poll_result(const Driver::Evidence& evidence) {
  if (evidence.empty() || release_) return;
  const auto& gpu = evidence.front().scope.gpu;
  const auto before = machine_.unavailable_sources(gpu);
  HealthChanges changes;
  for (const auto& one : evidence) {
    if (const auto* handle = std::get_if<health::HandleReading>(&one.body))
      compare_with_snapshot(one.scope.gpu, *handle);
    append_changes(changes, machine_.add_evidence(one));
  }
  polled_.insert(gpu);
  append_changes(changes, report_mig_events(gpu));
  append_changes(changes, machine_.advance_to(ports_.loop.now()));
  end_round(std::move(changes), machine_.unavailable_sources(gpu) != before);
}

// A GPU that was lost or is back may be another card, or have another MIG layout.
void HealthController::compare_with_snapshot(const DeviceUuid& gpu, const health::HandleReading& handle) {
  const auto* there = snapshot_.find(gpu);
  if (there == nullptr) return;
  const bool answers = handle.reachability == Reachability::kReachable;
  const bool before = std::exchange(reachable_[gpu], answers);
  if (answers ? there->unreadable.has_value() : !there->unreadable && before) ports_.request_snapshot();
}

bool HealthController::end_round(HealthChanges changes, bool always_publish) {
  // Changes from before the first snapshot are published with it.
  HealthChanges all = std::exchange(pending_changes_, {});
  append_changes(all, std::move(changes));
  changes = std::move(all);
  merge_changes(changes);
  saver_.save_if_changed();
  poller_.schedule_polls(machine_.health_policy(), filter_.is_all_disabled(), machine_.withdrawn_gpus(),
                         machine_.next_recovery_time());
  if (!has_snapshot_) {
    pending_changes_ = std::move(changes);
    return false;
  }
  // Also changes that do not affect any state: faults other than the worst, recovery times.
  const auto revision = machine_.revision();
  const auto due = machine_.next_recovery_time();
  const bool differs = revision != std::exchange(published_revision_, revision) || due != published_due_;
  published_due_ = due;
  if (changes.empty() && !differs && !always_publish) return false;
  const bool first = view_ == nullptr;
  publish_view(changes);
  return first || !changes.empty();
}

void HealthController::publish_view(const HealthChanges& changes) {
  auto view = build_health_view(machine_, snapshot_, {ports_.loop.now(), ports_.loop.wall_now()});
  view.release = release_;
  for (auto& device : view.devices) {
    const auto note = repair_notes_.find(device.scope.gpu);
    if (note != repair_notes_.end() && device.scope.is_whole_gpu()) device.repair = note->second;
    const auto preflight = preflights_.gpus.find(device.scope.gpu);
    if (preflight == preflights_.gpus.end() || !device.scope.is_whole_gpu()) continue;
    device.preflight = preflight->second.result;
    device.preflight_detail = preflight->second.detail;
  }
  view_ = std::make_shared<const health::HealthView>(std::move(view));
  if (ports_.on_changed) ports_.on_changed(view_, changes);
}

}  // namespace gpulet::agent
