// The controller of device health: feeds HealthStateMachine (health/state/state_machine.h) with driver
// events, polls, kernel log lines and operator commands, schedules polls, persists faults (health_store.h),
// publishes a HealthView at each change, and turns changes into Events (health_events).
//
// A round is one piece of evidence, or all evidence of one poll. A round that changes nothing costs a few
// microseconds and notifies nobody, so that a storm of repeated XIDs is cheap. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/health/health_poller.h"
#include "agent/health/health_store.h"
#include "agent/node/ports.h"
#include "base/loop.h"
#include "base/result.h"
#include "config/config.h"
#include "health/evidence/kmsg_parser.h"
#include "health/report/node_health.h"
#include "health/state/device_status.h"
#include "health/state/state_machine.h"

namespace gpulet::agent {

// The Events and log lines for status changes: one for each change, and only one for a GPU whose MIG devices
// share it.

struct HealthEvent {
  Reporter::Severity severity = Reporter::Severity::kNormal;
  // GPUUnhealthy: withdrawn. GPUHealthChanged: still withdrawn, for another reason. GPURecovering: the
  // recovery condition is met. GPUHealthy: allocatable again. GPUDegraded: allocatable and flagged.
  // GPUUnmonitored.
  std::string_view reason;
  std::string message;
  health::Scope device;
  bool names_pods = false;  // the Event also lists the Pods that hold the device
};
// Nothing for removed devices, and nothing when the first sources of a device report.
std::vector<HealthEvent> health_events(const health::HealthView& view,
                                       const std::vector<health::StatusChange>& changes);

// The changes of one round, each device once.
using HealthChanges = std::vector<health::StatusChange>;

struct HealthControllerPorts {
  Loop& loop;
  Driver& driver;
  // Null: nothing is persisted. Outlives the HealthController.
  HealthStore* store = nullptr;
  // Called within each round that changed a status. `changes` is empty if only details differ: the first
  // reading, unavailable sources, faults beside the worst, or the recovery time. May be empty.
  std::function<void(const health::HealthViewPtr&, const HealthChanges&)> on_changed;
  // save_error() is new or has ended; may be empty.
  std::function<void()> on_save_error = nullptr;
  // The driver's answer contradicts the last snapshot (a GPU was lost or is back): read a new one.
  std::function<void()> request_snapshot;
};

// The test programs of GPUs (agent/preflight/preflight_controller.h), as sources of evidence and results.
struct Preflights {
  struct OfGpu {
    std::optional<std::string> absent{};  // why its return does not wait for one; nullopt: it does
    std::string result{}, detail{};       // DeviceView::preflight
    friend bool operator==(const OfGpu&, const OfGpu&) = default;
  };
  std::optional<std::string> absent = "gpulet.preflight is not enabled";  // of GPUs that are not below
  std::map<DeviceUuid, OfGpu> gpus{};
  friend bool operator==(const Preflights&, const Preflights&) = default;
};

class HealthController {
 public:
  HealthController(HealthControllerPorts ports, const config::Config& config);
  ~HealthController();
  HealthController(const HealthController&) = delete;

  // The policy applies from the next evidence, a shorter interval at once. Returns as on_new_snapshot.
  bool apply_health_config(const config::Config& config);

  // A new reading of the devices. Returns whether `on_changed` was called with changes, or for the first
  // time.
  bool on_new_snapshot(const inventory::Snapshot& snapshot);
  // The last snapshot again, after Gpu::excluded may have changed: published if it has.
  void on_excluded_marked(const inventory::Snapshot& snapshot);
  // Pauses polling until the next snapshot.
  void on_driver_unavailable();
  // The driver is closed on request, or about to be; nullopt: not, or no longer. Published at once, also
  // before the first snapshot. Meanwhile results of earlier polls are dropped.
  void set_driver_release(std::optional<health::DriverRelease> release);

  // What is done about the faults of GPUs (DeviceView::repair); published if it differs.
  void set_repair_notes(std::map<DeviceUuid, std::string> notes);

  // A driver event, an operator's command or ResetDone.
  void add_evidence(const health::Evidence& evidence);
  // A fault in the kernel log.
  void add_evidence(const health::FaultLine& line);
  // Whether the kernel log can be read: nullopt, or why not.
  void set_kernel_log_source(std::optional<std::string> absent);
  // Whether the driver gives the events of MIG instances: nullopt, or why not. Driver events count as
  // unavailable on each GPU in MIG mode then, although those of the whole GPU arrive.
  void set_mig_event_source(std::optional<std::string> absent);

  // What is known of preflights; published if it differs.
  void set_preflights(Preflights preflights);

  // The snapshot with each device's Health set.
  inventory::Snapshot annotate_snapshot(inventory::Snapshot snapshot) const {
    return machine_.annotate_health(std::move(snapshot));
  }
  const health::Policy& health_policy() const { return machine_.health_policy(); }
  // Null before the first snapshot.
  health::HealthViewPtr health_view() const { return view_; }
  // See HealthStateSaver.
  const std::optional<Error>& save_error() const { return saver_.save_error(); }

 private:
  HealthChanges report_event_sources(const DeviceUuid& gpu);
  HealthChanges report_mig_events(const DeviceUuid& gpu);
  bool lacks_mig_events(const DeviceUuid& gpu) const;
  bool has_driver_events(const DeviceUuid& gpu) const;
  void on_poll_result(const Driver::Evidence& evidence);
  void compare_with_snapshot(const DeviceUuid& gpu, const health::HandleReading& handle);
  // Returns as on_new_snapshot.
  bool end_round(HealthChanges changes, bool always_publish = false);
  void publish_view(const HealthChanges& changes);

  HealthControllerPorts ports_;
  health::XidFilter filter_;
  health::HealthStateMachine machine_;
  HealthPoller poller_;
  HealthStateSaver saver_;
  inventory::Snapshot snapshot_;          // the last one, without health
  bool has_snapshot_ = false;             // a snapshot was read
  HealthChanges pending_changes_;         // from before the first snapshot
  std::map<DeviceUuid, bool> reachable_;  // by the last poll of each GPU
  std::optional<health::SourceNotice> kernel_log_;
  Preflights preflights_;
  std::optional<std::string> mig_events_absent_;  // why; nullopt: they are received
  std::set<DeviceUuid> without_mig_events_;       // GPUs whose driver events lack those of instances
  // At least once: before, driver events may be the only source that has reported, and the GPU would count
  // as unmonitored.
  std::set<DeviceUuid> polled_;
  std::optional<health::DriverRelease> release_;
  std::map<DeviceUuid, std::string> repair_notes_;
  health::HealthViewPtr view_;
  std::uint64_t published_revision_ = 0;  // of the machine at the last publication
  std::optional<Time> published_due_;
};

}  // namespace gpulet::agent
