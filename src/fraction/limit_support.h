// Whether the driver can limit the memory of a cgroup on GPUs without MIG, and if not, why. Pure.
//
// The driver cannot be asked: with its own accounting, a cgroup without a limit is NOT_SUPPORTED or
// NOT_FOUND, as where limits do not exist. What the driver counts on, whether the kernel has the controller
// misc or dmem, is known only once a limit was set and read back. Sources: nvml.h 13.5,
// nvmlDeviceSetMemoryLimits_v1; open-gpu-kernel-modules 615.71.09 (RmMemacctMode, refusal in MIG mode); both
// read, not run.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace gpulet::fraction {

// The first branch of the driver with limits. 580 and 610 have parts of the code that enforce nothing.
inline constexpr unsigned kFirstBranchWithLimits = 615;

// Whether the text of /proc/driver/nvidia/params has the registry key RmMemacctMode=0.
bool switches_accounting_off(std::string_view parameters);

struct LimitEvidence {
  std::string driver_version;             // "615.71.09"
  bool has_functions = false;             // the driver's library has them
  bool is_administrator = false;          // CAP_SYS_ADMIN is in effect
  bool is_cgroup_v2 = false;              // of the node
  std::optional<std::string> parameters;  // the text of /proc/driver/nvidia/params; nullopt: not readable
};

struct MemoryLimitSupport {
  std::string reason;  // one line for an operator; empty: supported
  bool is_supported() const { return reason.empty(); }
};

// The first reason in the order: driver, its parameters, cgroup version, right. Parameters that
// cannot be read are no reason: a limit that is not in effect shows when it is read back.
MemoryLimitSupport check_limit_support(const LimitEvidence& evidence);

}  // namespace gpulet::fraction
