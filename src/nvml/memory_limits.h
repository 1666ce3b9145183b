// Limits of a GPU's memory for the processes of a cgroup, which drivers from branch 615 on enforce in the
// kernel.
//
// Errors and threads are those of Session. kUnsupported also for a GPU in MIG mode, a MIG device, a cgroup
// v1, and accounting that is switched off in the driver or the kernel; kIo for a path that is no cgroup.
// Every error names the cgroup. Source: nvml.h 13.5, nvmlDeviceSetMemoryLimits_v1 and
// nvmlDeviceGetMemoryLimits_v1.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// NVML_DEVICE_MEMORY_LIMIT_MAX.
inline constexpr Bytes kNoMemoryLimit{~std::uint64_t{0}};

struct MemoryLimits {
  Bytes soft{};                 // reserved for the cgroup
  Bytes hard = kNoMemoryLimit;  // allocations beyond it fail as on a full GPU
  Bytes used{};                 // not set, only read
  friend bool operator==(const MemoryLimits&, const MemoryLimits&) = default;

  bool is_limited() const { return soft != Bytes{} || hard != kNoMemoryLimit; }
};

class MemoryLimiter {
 public:
  // `session` must outlive this object.
  MemoryLimiter(const Session& session, Device gpu) : session_(session), gpu_(gpu) {}

  // Whether the driver's library has both functions. No driver call.
  static bool has_functions(const Session& session);

  // `cgroup`: its directory as this process sees it, "/sys/fs/cgroup/kubepods.slice/…". The default limits
  // clear those of the cgroup. Needs CAP_SYS_ADMIN. kInvalidArgument where a limit exceeds the GPU's memory;
  // with the driver's own accounting also below the current use.
  Status set_limits(const std::string& cgroup, const MemoryLimits& limits) const;
  // With the driver's own accounting, kNotFound or kUnsupported for a cgroup without a limit: no sign that
  // limits are not supported.
  Result<MemoryLimits> read_limits(const std::string& cgroup) const;

 private:
  const Session& session_;
  Device gpu_;
};

}  // namespace gpulet::nvml
