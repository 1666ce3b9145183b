// Faults of the node's GPUs that outlive the process: plain values for HealthStateMachine, and the file that
// keeps them over a restart and a reboot. Readings are not kept. The file is safe to lose: each device then
// starts clean, and faults that persist are seen again. It is text, one line per GPU and per fault, for
// people to read:
//
//   gpulet-health 1
//   boot 4c6f…
//   gpu GPU-5a… 0000:3b:00.0 2 1763712000123
//   fault xid-reboot 79 - - 1763711990000 1763711990000 1 1
//   end
//
// gpu: UUID, slot (- for none), relapses, time of the last recovery (- for never). fault: class, code, GPU
// and compute instance (- for none), opened, last seen, count, whether the recovery action covers it (1 or
// 0), then the detail. Times are wall-clock milliseconds since 1970.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "health/policy/health_policy.h"

namespace gpulet::health {

struct PersistedFault {
  FaultClass fault_class = FaultClass::kXidUnknown;
  std::uint64_t code = 0;
  std::uint32_t gpu_instance = kNoInstance, compute_instance = kNoInstance;
  WallTime opened{}, last_seen{};  // whole milliseconds
  std::uint64_t count = 1;
  bool linked = false;
  std::string detail;  // one line
  friend bool operator==(const PersistedFault&, const PersistedFault&) = default;
};
struct PersistedGpu {
  DeviceUuid uuid;
  std::string slot;  // its PCI address in sysfs form, or empty
  unsigned relapses = 0;
  std::optional<WallTime> last_recovered_at;
  std::vector<PersistedFault> faults;
  friend bool operator==(const PersistedGpu&, const PersistedGpu&) = default;
};
struct PersistedState {
  std::string boot_id;  // /proc/sys/kernel/random/boot_id
  std::vector<PersistedGpu> gpus;
  friend bool operator==(const PersistedState&, const PersistedState&) = default;
};

inline constexpr std::size_t kMaxStateBytes = 1u << 20;

std::string format_persisted_state(const PersistedState& saved);
// Errors: kInvalidArgument with the line number.
Result<PersistedState> parse_persisted_state(std::string_view text);

// Empty for a file that does not exist. Errors: those of read_file and parse_persisted_state; log once and
// continue with an empty state.
Result<PersistedState> read_persisted_state(const std::string& path);
// Atomic; readable by its owner only.
Status write_persisted_state(const std::string& path, const PersistedState& saved);
// The id of this boot. Errors: those of read_file.
Result<std::string> read_boot_id(const std::string& path = "/proc/sys/kernel/random/boot_id");

}  // namespace gpulet::health
