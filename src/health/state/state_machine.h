// The health of a node's devices: evidence in, status out. Pure: time comes with the evidence and never goes
// back.
//
// The state machine keeps one GpuRecord per GPU. evidence/evidence_rules.h applies evidence to it;
// device_status.h decides each device's status and when a fault ends. A fault covers the scope it was
// reported for and nothing else. A check whose source is unavailable is skipped; a check that has not
// reported yet is waited for. The order in which different sources report does not matter; readings of one
// source come in order. Cost: a few microseconds per piece of evidence; memory is bounded (kMaxGpus,
// kMaxFaults, kMaxErrors).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "health/evidence/evidence.h"
#include "health/evidence/evidence_rules.h"
#include "health/policy/health_policy.h"
#include "health/state/device_status.h"
#include "health/state/persisted_state.h"
#include "health/xid/xid_catalogue.h"
#include "inventory/snapshot.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxGpus = 256;  // evidence of further unknown GPUs is dropped

// One moment by both clocks: persisted times use the wall clock.
struct ClockPair {
  Time now{};
  WallTime wall{};
};

// A source that cannot be read for a GPU, and why.
struct UnavailableSource {
  Source source = Source::kDriverEvents;
  std::string reason;
  friend bool operator==(const UnavailableSource&, const UnavailableSource&) = default;
};

// Of the NVLinks of a GPU.
struct LinkCounts {
  unsigned all = 0, up = 0;
  friend bool operator==(const LinkCounts&, const LinkCounts&) = default;
};

class HealthStateMachine {
 public:
  HealthStateMachine(Policy policy, XidFilter filter);
  // Both apply from the next evidence; open faults stay.
  void set_policy(Policy policy) { policy_ = std::move(policy); }
  void set_filter(XidFilter filter) { filter_ = std::move(filter); }
  const Policy& health_policy() const { return policy_; }

  // Which devices exist. Also a handle reading: an unreadable GPU has its error, a removed one is lost. A new
  // UUID in a known slot replaces the record of the card before it.
  std::vector<StatusChange> apply_snapshot(const inventory::Snapshot& snapshot, Time now);
  std::vector<StatusChange> add_evidence(const Evidence& evidence);
  // After each round of polls: ends faults whose time has come, and forgets GPUs that were removed long ago.
  std::vector<StatusChange> advance_to(Time now);

  // The snapshot with each device's Health set: healthy if allocatable, otherwise with the worst fault's
  // text.
  inventory::Snapshot annotate_health(inventory::Snapshot snapshot) const;
  // nullopt for a GPU or MIG device that was in no snapshot.
  std::optional<DeviceStatus> device_status(const Scope& device) const;
  // Of every known device, by GPU and instance.
  std::vector<std::pair<Scope, DeviceStatus>> device_statuses() const;
  std::vector<UnavailableSource> unavailable_sources(const DeviceUuid& gpu) const;
  // Whether it was registered with an NVLink fabric when that was read last.
  bool is_in_fabric(const DeviceUuid& gpu) const;
  // The NVLinks that have ever been up, and how many of them were up when they were read last.
  LinkCounts link_counts(const DeviceUuid& gpu) const;

  // GPUs with a fault that withdraws them: poll all their checks every Policy::unhealthy_poll_interval.
  std::vector<DeviceUuid> withdrawn_gpus() const;
  // The next time at which a fault could end: poll then.
  std::optional<Time> next_recovery_time() const;

  // What to persist, and a number that changes with it.
  PersistedState to_persisted_state(const ClockPair& clock, const std::string& boot_id) const;
  std::uint64_t revision() const { return revision_; }
  // Once, before the first snapshot. Another boot id proves that the node was rebooted.
  void restore_state(const PersistedState& saved, const std::string& boot_id, const ClockPair& clock);

 private:
  GpuRecord* record_for(const DeviceUuid& gpu);
  bool apply_to_record(GpuRecord& record, const Evidence& evidence);  // whether a status may have changed
  void begin_instant(GpuRecord& record, Time at, std::vector<StatusChange>& changes);
  void refresh_statuses(GpuRecord& record, std::vector<StatusChange>& changes, bool settle);

  Policy policy_;
  XidFilter filter_;
  std::map<DeviceUuid, GpuRecord> records_;
  Time now_{};
  std::uint64_t revision_ = 0;
};

}  // namespace gpulet::health
