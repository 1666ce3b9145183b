// The state of a device, and why: what `gpulet health` shows, and what is told to the cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "health/rules.h"
#include "health/scope.h"

namespace gpulet::health {

enum class State {
  kHealthy,
  kUnmonitored,  // offered; nothing would tell of a fault
  kDegraded,     // offered, and flagged
  kRecovering,   // not offered: what was wanted is proved, and the checks are running
  kDraining,     // not offered; whoever is on it may finish
  kQuarantined,  // not offered
  kLost,         // not offered: nothing can run on it
};
inline constexpr State kStates[] = {State::kHealthy,    State::kUnmonitored, State::kDegraded,
                                    State::kRecovering, State::kDraining,    State::kQuarantined,
                                    State::kLost};
std::string_view name(State state);  // "quarantined"
constexpr bool offered(State state) {
  return state == State::kHealthy || state == State::kUnmonitored || state == State::kDegraded;
}

// One fault that is open on a device: a piece of evidence, and what ends it.
struct Fault {
  FaultClass fault_class = FaultClass::kXidUnknown;
  std::uint64_t code = 0;  // the XID, the SXid, the link; 0 where there is only one of its class
  Scope scope;             // what is broken: perhaps more than the device that it is shown for
  Effect effect = Effect::kFlag;
  Time opened{}, last_seen{};
  std::uint64_t count = 0;
  std::string detail;
  bool linked = false;         // the driver's recovery action speaks for it
  std::optional<Time> proved;  // when what it wants was proved
  std::optional<Time> due;     // proved, and every check passes: when it ends if they go on
  std::string text() const;    // "XID 79: GPU has fallen off the bus", without the count
};

inline constexpr unsigned kMostRelapses = 1'000'000;  // that are read back of a GPU

struct Standing {
  State state = State::kHealthy;
  Time since{};        // when it came into this state; never earlier than when it came into the one before
  std::string reason;  // the worst fault's text; empty when healthy
  std::string comes_back;     // what ends that fault; empty when healthy
  std::vector<Fault> faults;  // worst first
  unsigned relapses = 0;      // of the GPU
  std::optional<Time> due;    // when it is offered again at the earliest, once that can be said
};

struct Change {
  Scope device;
  Standing before, after;
};

}  // namespace gpulet::health
