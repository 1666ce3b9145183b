// Limits of a GPU's memory by cgroup, on the driver's thread: set with a check of what the driver reads back,
// clear, and whether the driver can.
//
// No function with `done` blocks; it is called once on the loop, not after the driver's destruction. Errors
// beside those that a function names: those of NvmlDriver::run_on_gpu() and nvml::MemoryLimiter; kNotFound
// where the node has another GPU in its place. A call beyond kMemoryLimitDeadline may still have its effect.
#pragma once

#include <functional>
#include <string>

#include "agent/driver/nvml_driver.h"
#include "base/result.h"
#include "base/types.h"
#include "fraction/limit_support.h"

namespace gpulet::agent {

// A GPU may have to be woken up, which takes seconds.
inline constexpr Duration kMemoryLimitDeadline = std::chrono::seconds(5);

// Limits the processes of `cgroup` to `limit` on a GPU and reserves that much: soft and hard limit are equal.
// `cgroup`: its directory as this process sees it, "/sys/fs/cgroup/kubepods.slice/…". Fails closed: where the
// driver reads back anything else the limits are cleared again, kFailedPrecondition with what it read back.
// An earlier limit stays if the driver refuses the new one.
void set_memory_limit(NvmlDriver& driver, const DeviceUuid& gpu, std::string cgroup, Bytes limit,
                      std::function<void(Status)> done);

// Sets the hard limit of a cgroup with limited ones below; nvml::kNoMemoryLimit: none. The soft limit stays
// as it is: the driver adds up there what those below reserve. kFailedPrecondition where it reads back
// another hard limit, which may stay.
void set_pod_memory_limit(NvmlDriver& driver, const DeviceUuid& gpu, std::string cgroup, Bytes limit,
                          std::function<void(Status)> done);

// Succeeds where the driver reads back no limit afterwards, also if there was none. kFailedPrecondition if it
// reads back one; kIo for a cgroup that no longer exists. Clear before the cgroup is removed: the driver's
// own table keeps the limit for a later cgroup, and the kernel's controller the reservation at the ancestors.
void clear_memory_limit(NvmlDriver& driver, const DeviceUuid& gpu, std::string cgroup,
                        std::function<void(Status)> done);

// Files of the node, as this process sees them.
struct LimitFiles {
  std::string cgroups = "/sys/fs/cgroup";
  std::string parameters = "/proc/driver/nvidia/params";
};
// For GPUs without MIG. Asks the driver nothing about limits: see fraction/limit_support.h. On the driver's
// thread; reads two small files.
fraction::MemoryLimitSupport read_memory_limit_support(const nvml::Session& session,
                                                       const LimitFiles& files = {});

}  // namespace gpulet::agent
