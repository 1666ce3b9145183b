// Power limits and locked clocks of GPUs, on the driver's thread: reading with what the driver takes, and
// setting with a check of what it reads back.
//
// No function blocks; `done` is called once on the loop, not after the driver's destruction. Errors: those of
// NvmlDriver::run_on_gpu(); kNotFound where the node has another GPU in its place. A call beyond `limit`
// may still have its effect.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "agent/driver/nvml_driver.h"
#include "base/result.h"
#include "base/types.h"
#include "partition/power_plan.h"

namespace gpulet::agent {

// Of a call of an agent that ends. A GPU may have to be woken up, which takes seconds: all others have the
// driver's call timeout.
inline constexpr Duration kPowerDeadline = std::chrono::seconds(2);

struct PowerReading {
  // Of the NVML session (nvml::Session::generation): another one may be of a driver that was loaded again.
  std::uint64_t session = 0;
  std::optional<MilliWatts> limit{};     // as requested; nullopt: the GPU has none
  std::optional<MilliWatts> enforced{};  // the lowest of all limits, that of the board included
  partition::PowerBounds bounds{};
};

struct ClockWrite {
  std::optional<config::ClockRange> lock{};  // nullopt: unlock
  friend bool operator==(const ClockWrite&, const ClockWrite&) = default;
};
struct PowerWrites {
  std::optional<MilliWatts> limit{};
  std::optional<ClockWrite> graphics{}, memory{};
  bool is_empty() const { return !limit && !graphics && !memory; }
  friend bool operator==(const PowerWrites&, const PowerWrites&) = default;
};
// Of those that were asked for. `read_back` may differ from what was set.
struct PowerWritten {
  Status limit{}, graphics{}, memory{};
  std::optional<MilliWatts> read_back{}, enforced{};
};

void read_power(NvmlDriver& driver, const DeviceUuid& gpu, Duration limit,
                std::function<void(Result<PowerReading>)> done);
// Each is tried, whatever comes of the others.
void write_power(NvmlDriver& driver, const DeviceUuid& gpu, const PowerWrites& writes, Duration limit,
                 std::function<void(Result<PowerWritten>)> done);

}  // namespace gpulet::agent
