// What the Machine knows of one GPU: its open faults, the last readings, and how its checks stand. Only
// machine.cpp, and the rules in readings.cpp that turn one piece of evidence into faults, use it.
#pragma once

#include <array>
#include <compare>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "health/evidence.h"
#include "health/policy.h"
#include "health/state.h"
#include "health/xid_filter.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxFaults =
    128;  // of one GPU; beyond, the new one's class is noted for the whole GPU
inline constexpr std::size_t kMaxErrors = 256;  // applications' errors that are remembered of one GPU

struct FaultKey {
  FaultClass fault_class = FaultClass::kXidUnknown;
  std::uint64_t code = 0;
  Scope scope;
  friend auto operator<=>(const FaultKey&, const FaultKey&) = default;
};

struct OpenFault {
  Time opened{}, last_seen{};
  std::uint64_t events = 0, lines = 0;  // times seen, by driver events and readings, and in the kernel's log
  std::string detail;
  bool linked = false;
  std::optional<Time> proved;
  std::optional<Time> good_last;  // the last reading that says it is over, for Want::kReading
};

struct CheckTrack {
  bool heard = false, passing = false;
  Time since{}, last{};  // since when it passes; of the last reading
};
struct SourceTrack {
  bool heard = false;
  Time last{};
  std::optional<std::string> absent;
};

// One application's error. Events and the log tell of the same one: at about the same time, with the same
// code.
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

// A counter at the beginning of the minute that is being judged.
struct RateTrack {
  Time at{};
  std::uint64_t value = 0;
};
struct LinkTrack {
  bool up = false;
  RateTrack errors;
};

struct Record {
  DeviceUuid uuid;
  std::string slot;
  bool present = false;  // in the last snapshot
  Time gone{};           // since when it is not
  bool mig_enabled = false;
  unsigned driver_branch = 0;
  std::vector<Scope> devices;  // itself, then its MIG devices

  std::map<FaultKey, OpenFault> faults;
  std::array<SourceTrack, kSourceCount> sources;
  std::array<CheckTrack, kCheckCount> checks;

  std::deque<ApplicationError> errors;  // by time
  Time errors_cleared{};                // those until then have been dealt with
  std::map<Scope, std::pair<Time, unsigned>> processes;
  std::optional<RowRemapReading> remap;
  std::optional<EccReading> ecc;
  std::map<unsigned, LinkTrack> links;
  std::optional<PcieReading> pcie;
  RateTrack replays;
  std::optional<ViolationReading> violations;       // the last one
  std::optional<ViolationReading> violations_then;  // and that of the minute's beginning
  Time violations_at{};
  std::optional<EnergyReading> energy;

  Time moment{};           // of the newest evidence
  bool unsettled = false;  // something was said since it was last asked what is over

  bool lost = false;
  std::optional<Time> reset_at, reboot_at, returned_at;

  bool withdrawn = false;  // a fault that relapses withdraws it
  unsigned relapses = 0;
  std::optional<Time> recovered;

  std::map<Scope, Standing> standings;

  bool absent(Source source) const { return sources[static_cast<std::size_t>(source)].absent.has_value(); }
  bool heard(Source source) const {
    const auto& track = sources[static_cast<std::size_t>(source)];
    return track.heard && !track.absent;
  }
};

// What readings.cpp needs of the Machine.
struct Rules {
  const Policy& policy;
  const XidFilter& filter;
};
struct Taken {
  bool kept = false;   // something that is kept beyond this process has changed
  bool quiet = false;  // one more of what is known already: no state can have changed
};
// Takes one piece of evidence into the record: opens faults, proves them, moves its checks.
Taken take(Record& record, const Evidence& evidence, const Rules& rules);

// When each required check has passed for the fault's time, if it is proved and they pass now; nullopt
// otherwise.
std::optional<Time> due_of(const Record& record, const FaultKey& key, const OpenFault& fault,
                           const Policy& policy);
// Whether every required check was seen to pass at that time or later.
bool confirmed(const Record& record, const FaultKey& key, const OpenFault& fault, Time due, Time now);
// When what the fault wants was proved by something other than the reading that told of it.
std::optional<Time> proof_of(const Record& record, const FaultKey& key, const OpenFault& fault,
                             const Policy& policy);

}  // namespace gpulet::health
