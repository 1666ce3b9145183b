// The health of a node's devices: evidence in, states out. Pure: time comes with the evidence and never goes
// back.
//
// A device is withdrawn because of faults, and each fault ends only by proof: what the rule wants (rules.h),
// then its checks passing without a break for its time, each shown by readings from both ends of it. Time
// alone heals nothing, neither does silence. A check whose source is known to be absent is not asked for; one
// that merely has not spoken is. A fault's scope is what it was reported for, and covers every device in it,
// and nothing else. The same evidence gives the same states whichever source comes first; readings of one
// source come in order. Cost: a few microseconds a piece of evidence; memory is bounded (kMaxGpus,
// kMaxFaults, kMaxErrors).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "health/evidence.h"
#include "health/policy.h"
#include "health/record.h"
#include "health/saved.h"
#include "health/state.h"
#include "health/xid_filter.h"
#include "inventory/snapshot.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxGpus =
    256;  // remembered; beyond, evidence of a GPU that nobody has seen is dropped

// One moment by both clocks: what is kept beyond this process has the wall's time.
struct Clock {
  Time now{};
  WallTime wall{};
};

// What could not be asked about a GPU, and why.
struct Absence {
  Source source = Source::kDriverEvents;
  std::string why;
  friend bool operator==(const Absence&, const Absence&) = default;
};

class Machine {
 public:
  Machine(Policy policy, XidFilter filter);
  // Count from the next evidence on; open faults stay.
  void set_policy(Policy policy) { policy_ = std::move(policy); }
  void set_filter(XidFilter filter) { filter_ = std::move(filter); }
  const Policy& policy() const { return policy_; }

  // Which devices there are. Also a reading of the handle: of an unreadable GPU as its error says, of one
  // that is gone as lost. A new UUID in a known slot ends what was known of the card before it.
  std::vector<Change> on_snapshot(const inventory::Snapshot& snapshot, Time now);
  std::vector<Change> on_evidence(const Evidence& evidence);
  // Ends the moment: after each round of polls. What only waits for time ends too (a flag), and what is long
  // gone is forgotten.
  std::vector<Change> advance(Time now);

  // The snapshot with each device's Health: healthy when it is offered, and the worst fault's text when it is
  // not.
  inventory::Snapshot judge(inventory::Snapshot snapshot) const;
  // Of a GPU or MIG device; nullopt for one that no snapshot had.
  std::optional<Standing> standing(const Scope& device) const;
  // Every known device, by GPU and instance.
  std::vector<std::pair<Scope, Standing>> standings() const;
  std::vector<Absence> absences(const DeviceUuid& gpu) const;

  // GPUs with a fault that withdraws them: to be asked every suspect_interval, everything that a check needs.
  std::vector<DeviceUuid> suspects() const;
  // When the next one could be offered again: ask it then, rather than at the next interval.
  std::optional<Time> next_due() const;

  // What is to be kept, and a number that changes with it.
  Saved save(const Clock& clock, const std::string& boot_id) const;
  std::uint64_t revision() const { return revision_; }
  // At the start, before the first snapshot. Another boot proves that the node was rebooted.
  void restore(const Saved& saved, const std::string& boot_id, const Clock& clock);

 private:
  Record* record_for(const DeviceUuid& gpu);
  bool apply(Record& record, const Evidence& evidence);  // whether a state may have changed
  void begin_moment(Record& record, Time at, std::vector<Change>& changes);
  void refresh(Record& record, std::vector<Change>& changes, bool settle);
  Standing standing_of(const Record& record, const Scope& device) const;

  Policy policy_;
  XidFilter filter_;
  std::map<DeviceUuid, Record> records_;
  Time now_{};
  std::uint64_t revision_ = 0;
};

}  // namespace gpulet::health
