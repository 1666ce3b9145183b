// Whether a running container may still open the device nodes of its GPUs: asks its device cgroup. Where
// NVIDIA's runtime added the rules behind the container engine's back, or /dev/char has no link to a node,
// `systemctl daemon-reload` writes rules without the GPUs: processes that hold a node open go on, the next
// open fails ("Failed to initialize NVML: Unknown Error").
//
// cgroup v1 has the rules in devices.list. cgroup v2 has a BPF program, which only a process of the cgroup
// can ask: a child of the agent that is created there, checks the nodes, opens none, and ends. Sources: Linux
// Documentation/admin-guide/cgroup-v1/devices.rst, cgroup-v2.rst "Device controller"; clone(2)
// CLONE_INTO_CGROUP; NVIDIA/nvidia-container-toolkit#48.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet::agent {

// Whether the text of devices.list permits reading and writing the character device.
bool permits_device(std::string_view devices_list, unsigned major, unsigned minor);

// The host's cgroups as this process sees them.
struct DeviceCgroups {
  std::string directory;  // "/sys/fs/cgroup/devices", or of v2 "/sys/fs/cgroup"
  bool is_unified = false;
  // The directory of each container of a Pod, by the engine's id.
  std::map<std::string, std::string> containers{};
};

inline constexpr std::size_t kMaxCgroupDirectories = 16384;  // that are read
inline constexpr unsigned kMaxCgroupDepth = 8;

// Looks below `root` + "/sys/fs/cgroup". Reads each directory above those of containers once. Errors:
// kNotFound where no Pod's container is there: this process sees its own cgroup alone.
Result<DeviceCgroups> find_device_cgroups(const std::string& root);

inline constexpr std::size_t kMaxCheckedNodes = 100;  // of one container: the child's exit status names one
// A frozen container freezes the child, too: it is killed then.
inline constexpr Duration kAccessCheckTimeout = std::chrono::seconds(2);

// Finds the first of `nodes` that the cgroup refuses with EPERM; nullopt: none. A node that does not exist is
// not refused. v1: two file operations for each node. v2: a fork of the agent. `done` comes once, from the
// loop, not from inside the constructor; the destructor ends the check without it. Errors, to `done`:
// kNotFound for a container that has ended, kInvalidArgument for more than kMaxCheckedNodes,
// kPermissionDenied, kUnavailable at the cgroup's limit of processes, kDeadlineExceeded.
class AccessCheck {
 public:
  using Answer = Result<std::optional<std::string>>;
  using Done = std::function<void(Answer)>;
  AccessCheck(Loop& loop, const DeviceCgroups& cgroups, const std::string& cgroup_directory,
              std::vector<std::string> nodes, Done done);
  ~AccessCheck();
  AccessCheck(const AccessCheck&) = delete;

 private:
  Answer read_rules(const std::string& cgroup_directory) const;
  Status start_child(const std::string& cgroup_directory);
  Answer wait_for_child();
  void kill_child();
  void answer_once(Answer answer);

  Loop& loop_;
  std::vector<std::string> nodes_;
  Done done_;
  pid_t child_ = -1;
  FileDescriptor process_;
  Subscription exited_, timeout_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
