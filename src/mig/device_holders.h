// The processes that have a GPU's device node open. NVML lists processes with a context only; monitors (DCGM,
// exporters) and whoever else has the driver open have none, and keep a GPU from being reset all the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gpulet::mig {

// What keeps its nodes open beyond this is not listed.
inline constexpr std::size_t kMostDeviceHolders = 8;

struct DeviceHolder {
  unsigned pid = 0;  // as `proc_root` numbers it
  std::string name;  // "process 812 (nv-hostengine)"
  friend bool operator==(const DeviceHolder&, const DeviceHolder&) = default;
};

// "process PID (NAME)", or without the name where `proc_root` does not show it. The name is printable ASCII
// without parentheses.
std::string process_text(unsigned pid, const std::string& proc_root);
// `text` with all that process_text() has written into it as "process PID". Pure.
std::string without_process_names(std::string_view text);

// The holders of /dev/nvidia<minor>, by pid, without this process and nvidia-persistenced, which lets go of a
// GPU that is reset. Without the host's PID namespace or CAP_SYS_PTRACE other processes are not seen. Reads
// all of /proc/PID/fd: some ten milliseconds on a full node, for a thread that may block.
std::vector<DeviceHolder> find_device_holders(unsigned minor, const std::string& proc_root = "/proc");

}  // namespace gpulet::mig
