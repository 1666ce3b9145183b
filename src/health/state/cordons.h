// The operator's cordons on disk: `gpulet cordon` and `uncordon` write the file, the agent's CordonWatcher
// follows it. So a cordon survives restarts and reboots, and can be set while no agent runs. Text, one line
// per GPU or MIG device:
//
//   gpulet-cordons 1
//   cordoned GPU-5a… 1763712000123 new riser
//   uncordoned GPU-77… 1763712000456
//
// Each line has the UUID, the time (wall-clock milliseconds since 1970) and optionally the reason. Only the
// newest line of a device is kept. An uncordoned line stays for a while: it vouches for repairs before its
// time (OperatorCommand). A cordon without a line has ended.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "health/evidence/evidence.h"
#include "health/report/node_health.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxCordons = 1024;  // lines
inline constexpr std::size_t kMaxCordonReason = 256;
inline constexpr std::size_t kMaxCordonBytes = 1u << 20;
// The first update this long after an uncordoned line drops it.
inline constexpr Duration kUncordonedRetention = std::chrono::hours(24 * 30);

struct CordonEntry {
  OperatorAction action = OperatorAction::kCordon;
  WallTime at{};       // whole milliseconds
  std::string reason;  // one line, or empty
  friend bool operator==(const CordonEntry&, const CordonEntry&) = default;
};
using Cordons = std::map<DeviceUuid, CordonEntry>;

std::string format_cordons(const Cordons& cordons);
// Errors: kInvalidArgument with the line number.
Result<Cordons> parse_cordons(std::string_view text);
// Empty for a file that does not exist. Errors: those of read_file and parse_cordons.
Result<Cordons> read_cordons(const std::string& path);

// The text as a line may hold it: control characters become blanks; at most kMaxCordonReason bytes, not cut
// inside a UTF-8 character.
std::string sanitize_cordon_reason(std::string_view text);

// Reads the file, applies `change`, and writes it if it differs: atomic, 0644, under the lock PATH.lock.
// Errors: those of read_cordons and write_file_atomic; kInvalidArgument for more than kMaxCordons.
Status update_cordons(const std::string& path, WallTime now, const std::function<void(Cordons&)>& change);

// The commands that HealthStateMachine still needs so that its devices match the cordons; empty when they do.
// Only for devices in the view: an entry for another device applies when that device appears. `now`: the
// present by both clocks; the monotonic one is that of the view. Pure.
std::vector<Evidence> pending_operator_commands(const HealthView& view, const Cordons& cordons,
                                                const ClockPair& now);

}  // namespace gpulet::health
