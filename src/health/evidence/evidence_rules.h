// What one piece of evidence does to the record of a GPU: it opens a fault, renews it, meets its recovery
// condition, or moves a check. GpuRecord is the state of one GPU in HealthStateMachine. Source:
// docs/health.md, "Faults and recovery"; the XID classes are in xid/xid_catalogue.h.
#pragma once

#include <array>
#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "health/evidence/evidence.h"
#include "health/policy/health_policy.h"
#include "health/state/device_status.h"
#include "health/xid/xid_catalogue.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxFaults =
    128;  // per GPU; beyond, only the class is recorded, for the whole GPU
inline constexpr std::size_t kMaxErrors = 256;  // application errors remembered per GPU

struct FaultKey {
  FaultClass fault_class = FaultClass::kXidUnknown;
  std::uint64_t code = 0;
  Scope scope;
  friend auto operator<=>(const FaultKey&, const FaultKey&) = default;
};

struct OpenFault {
  Time opened{}, last_seen{};
  std::uint64_t events = 0, lines = 0;  // seen in driver events and readings, and in the kernel log
  std::string detail;
  bool linked = false;
  std::optional<Time> condition_met_at;
  std::optional<Time> last_good_reading;  // for RecoveryCondition::kReadingClear
};

struct CheckTrack {
  bool reported = false, passing = false;
  Time since{}, last{};  // passing since; last reading
};
// How long a source that has reported is waited for while its readings fail for a reason that may pass.
inline constexpr Duration kTransientLimit = std::chrono::minutes(10);

struct SourceTrack {
  bool reported = false;
  Time last{};
  std::optional<std::string> unavailable;
  Time unavailable_since{};
  bool awaited = false;  // unavailable, but a later reading may succeed
};

// One application error. An event and a log line at about the same time with the same code are the same
// error.
struct ApplicationError {
  Time at{};
  std::uint64_t code = 0;
  Scope scope;
  bool by_event = false, by_line = false;
  std::optional<std::uint32_t> pid;
  std::string owner;
  std::string application() const {
    return !owner.empty() ? owner : pid ? std::to_string(*pid) : std::string();
  }
};

// A counter at the beginning of the minute over which its rate is measured.
struct RateTrack {
  Time at{};
  std::uint64_t value = 0;
};
struct LinkTrack {
  bool up = false;
  RateTrack errors;
};

struct GpuRecord {
  DeviceUuid uuid;
  std::string slot;
  bool present = false;  // in the last snapshot
  Time removed_at{};     // when it left the snapshot
  bool mig_enabled = false;
  unsigned driver_branch = 0;
  std::vector<Scope> devices;  // the GPU, then its MIG devices

  std::map<FaultKey, OpenFault> faults;
  std::array<SourceTrack, kSourceCount> sources;
  std::array<CheckTrack, kCheckCount> checks;

  std::deque<ApplicationError> errors;  // by time
  Time errors_cleared{};                // errors up to this time no longer count
  std::map<Scope, std::pair<Time, unsigned>> processes;
  std::optional<RowRemapReading> remap;
  std::optional<EccReading> ecc;
  std::map<unsigned, LinkTrack> links;
  std::optional<PcieReading> pcie;
  FabricState fabric = FabricState::kNone;  // the last reading
  RateTrack replays;
  std::optional<ViolationReading> violations;       // the last reading
  std::optional<ViolationReading> violations_then;  // the reading at the beginning of the measured minute
  Time violations_at{};
  std::optional<EnergyReading> energy;

  Time last_evidence_at{};
  bool has_pending_evidence = false;  // evidence came since faults were last checked for their end

  bool lost = false;
  std::optional<Time> reset_at, reboot_at, returned_at;

  bool has_withdrawing_fault = false;  // a fault that counts as a relapse withdraws it
  unsigned relapses = 0;
  std::optional<Time> last_recovered_at;

  std::map<Scope, DeviceStatus> statuses;

  bool is_source_unavailable(Source source) const {
    const auto& track = sources[static_cast<std::size_t>(source)];
    return track.unavailable && !track.awaited;
  }
  bool has_source_reported(Source source) const {
    const auto& track = sources[static_cast<std::size_t>(source)];
    return track.reported && (!track.unavailable || track.awaited);
  }
};

struct RuleInputs {
  const Policy& policy;
  const XidFilter& filter;
};
struct EvidenceEffect {
  bool changes_persisted_state = false;
  bool changes_no_status = false;  // a repetition of what is already recorded
};
// Applies one piece of evidence to the record of its GPU. Evidence of one source comes in order; an overtaken
// reading is dropped. Cost: a few microseconds.
EvidenceEffect apply_evidence(GpuRecord& record, const Evidence& evidence, const RuleInputs& inputs);

}  // namespace gpulet::health
