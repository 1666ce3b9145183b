// What Pods and namespaces have held and used, as it is kept over restarts of the agent: plain values for
// UsageAccounting, and the file. The file is safe to lose: the sums then begin again, as a counter that is
// reset. It is text, for people to read:
//
//   gpulet-usage 1
//   boot 4c6f…
//   since 1763712000123
//   namespace team-a 120000 3600000000000 7200000000000 3600000000000
//   device GPU-5a… 81726354
//   departed 0 0 0 0
//   rest 500 0 0 0
//   pod team-a train-0 120000 3600000000000 7200000000000 3600000000000
//   end
//
// since: when the sums began, in milliseconds since 1970. device: UUID, the energy counter of the GPU in
// millijoules (- for none). Four numbers are an amount: millijoules, and busy, held and idle nanoseconds.
// namespace "-": what no Pod held or used.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "base/types.h"

namespace gpulet::metrics {

struct UsageAmount {
  std::uint64_t millijoules = 0;
  std::chrono::nanoseconds busy{};
  std::chrono::nanoseconds held{};  // times the part of the device that was held
  std::chrono::nanoseconds idle{};  // held and known to be unused
  friend bool operator==(const UsageAmount&, const UsageAmount&) = default;
};

// The last value of each GPU's energy counter.
using EnergyCounters = std::map<DeviceUuid, std::uint64_t>;

struct UsageRecord {
  struct Device {
    UsageAmount departed{}, unattributed{};
    std::map<PodName, UsageAmount> pods{};
    friend bool operator==(const Device&, const Device&) = default;
  };
  std::string boot_id{};  // of the energy counters
  WallTime since{};       // whole milliseconds
  std::map<std::string, UsageAmount> namespaces{};
  std::map<DeviceUuid, Device> devices{};
  EnergyCounters energy{};  // of GPUs in `devices`
  friend bool operator==(const UsageRecord&, const UsageRecord&) = default;
};

inline constexpr std::size_t kMaxUsageBytes = 2u << 20;
// Pods beyond are written as departed.
inline constexpr std::size_t kMaxRecordPods = 4096;
inline constexpr std::size_t kMaxRecordDevices = 1024;

std::string format_usage_record(const UsageRecord& record);
// Errors: kInvalidArgument with the line number.
Result<UsageRecord> parse_usage_record(std::string_view text);

}  // namespace gpulet::metrics
