// The power limit of a GPU and what its clocks are locked to: bounds, setting, and resetting. Current and
// default limit are read by Usage.
//
// Errors and threads are those of Session. Setting needs CAP_SYS_ADMIN; kInvalidArgument for a value out of
// bounds. A limit and a lock last until the driver is loaded again or the GPU is reset. What clocks are
// locked to cannot be read. Source: nvml.h, nvmlDeviceSetPowerManagementLimit,
// nvmlDeviceSetGpuLockedClocks (Volta and later), nvmlDeviceSetMemoryLockedClocks (Ampere and later).
#pragma once

#include <vector>

#include "base/result.h"
#include "nvml/session.h"
#include "nvml/usage.h"

namespace gpulet::nvml {

inline constexpr unsigned kMaxMemoryClocks = 64;      // of a GPU, that are read
inline constexpr unsigned kMaxGraphicsClocks = 1024;  // with one memory clock

class PowerControl {
 public:
  // `session` must outlive this object.
  PowerControl(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  Status set_power_limit(MilliWatts limit) const;
  // In MHz, both included.
  Status lock_graphics_clocks(unsigned lowest, unsigned highest) const;
  Status unlock_graphics_clocks() const;
  Status lock_memory_clocks(unsigned lowest, unsigned highest) const;
  Status unlock_memory_clocks() const;

  // In MHz, in the driver's order. kUnsupported on GPUs without such a list.
  Result<std::vector<unsigned>> supported_memory_clocks() const;
  // With this memory clock.
  Result<std::vector<unsigned>> supported_graphics_clocks(unsigned memory_clock) const;

 private:
  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml
