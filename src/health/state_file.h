// The file that keeps what is known of faults over a restart and a reboot: text, a line a GPU and a line a
// fault, so that a person can read it. Safe to lose: without it every device begins as new, and what is still
// wrong is seen again.
//
//   gpulet-health 1
//   boot 4c6f…
//   gpu GPU-5a… 0000:3b:00.0 2 1763712000123
//   fault xid-reboot 79 - - 1763711990000 1763711990000 1 1
//   end
//
// gpu: UUID, slot (- for none), relapses, when it was last offered again (- for never). fault: class, code,
// GPU and compute instance (- for none), opened, last seen, count, whether the recovery action speaks for it
// (1 or 0), and the rest of the line. Times are the wall's, in milliseconds since 1970.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "health/saved.h"

namespace gpulet::health {

inline constexpr std::size_t kMaxStateBytes = 1u << 20;

std::string format_state(const Saved& saved);
// kInvalidArgument for what is not one in every line: with the line's number.
Result<Saved> parse_state(std::string_view text);

// Nothing known for a file that does not exist. An error (as read_file says, or parse_state) is for the log,
// once: go on as if nothing were known.
Result<Saved> read_state(const std::string& path);
// Atomic; readable by its owner only.
Status write_state(const std::string& path, const Saved& saved);
// This boot's. Errors: as read_file says.
Result<std::string> read_boot_id(const std::string& path = "/proc/sys/kernel/random/boot_id");

}  // namespace gpulet::health
