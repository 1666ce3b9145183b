// The operator's word about each GPU, on disk: `gpulet cordon` and `uncordon` write it, the agent follows it
// (agent/cordon_care.h). So it counts over restarts and reboots, and may be given while no agent runs. Text,
// a line a GPU or MIG device, so that a person can read it:
//
//   gpulet-cordons 1
//   cordoned GPU-5a… 1763712000123 new riser
//   uncordoned GPU-77… 1763712000456
//
// The UUID, when (the wall's milliseconds since 1970), and why, if that was said. Of a device only its newest
// line is kept. An uncordoned one stays for a while: it vouches for what was wrong before its time
// (evidence.h, OperatorWish). A cordon that is in no line is over.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "health/evidence.h"
#include "health/view.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxCordons = 1024;  // lines
inline constexpr std::size_t kMaxCordonWords = 256;
inline constexpr std::size_t kMaxCordonBytes = 1u << 20;
// An uncordoned line is dropped by the first change this long after it.
inline constexpr Duration kUncordonedKept = std::chrono::hours(24 * 30);

struct OperatorWord {
  Wish wish = Wish::kCordon;
  WallTime at{};      // whole milliseconds
  std::string words;  // one line, or empty
  friend bool operator==(const OperatorWord&, const OperatorWord&) = default;
};
using Cordons = std::map<DeviceUuid, OperatorWord>;

std::string format_cordons(const Cordons& cordons);
// kInvalidArgument for what is not one in every line: with the line's number.
Result<Cordons> parse_cordons(std::string_view text);
// None for a file that does not exist. Errors: as read_file says, or parse_cordons, about the file.
Result<Cordons> read_cordons(const std::string& path);

// As a line may hold it: control characters are blanks, at most kMaxCordonWords bytes, not cut inside a
// character.
std::string cordon_words(std::string_view text);

// Reads, lets `change` work on it, and writes it where it differs: atomic, 0644, alone among those who change
// it (a lock beside it, PATH.lock; whoever has it reads and writes a small file). Errors: as read_cordons and
// write_file_atomic say; kInvalidArgument for more than kMaxCordons.
Status change_cordons(const std::string& path, WallTime now, const std::function<void(Cordons&)>& change);

// What must be said to the Machine so that its devices stand as the operator's words have it; empty when they
// do. About devices of the view alone: a word about another counts when that device is there. `now`: this
// moment by both clocks, the monotonic one that of the view. Pure.
std::vector<Evidence> wishes_of(const View& view, const Cordons& cordons, const Clock& now);

}  // namespace gpulet::health
