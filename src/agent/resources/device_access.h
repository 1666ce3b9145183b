// Notices that this container may not open the driver's device nodes. Its device cgroup has the nodes of the
// container's start: those of a GPU or driver that came later are refused, and where NVIDIA's runtime added
// the rules behind the container engine's back, `systemctl daemon-reload` takes all of them away. The next
// container gets them, so the agent ends itself once, in order, and the kubelet starts that container.
// Sources: Linux, security/device_cgroup.c; nvidia-container-toolkit, "Failed to initialize NVML: Unknown
// Error".
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "agent/node/ports.h"
#include "base/loop.h"

namespace gpulet::agent {

// Whether a device cgroup refuses this process the node: EPERM, which file modes never cause. Opens nothing,
// so no GPU is initialised.
bool is_access_denied(const std::string& path);

// Those of nvidiactl and nvidia0, nvidia1… in dev/ of these roots that are denied. A node counts once, by its
// name: any root that gives access will do. Blocks for a few file operations.
std::set<std::string> find_denied_nodes(
    const std::vector<std::string>& roots,
    const std::function<bool(const std::string& path)>& is_denied = is_access_denied);

// An agent that has just started waits for this long. Repeated restarts, whatever causes them, are slowed
// down further by the kubelet's back-off.
inline constexpr Duration kMinimumUptime = std::chrono::seconds(10);

// Loop's thread only.
class DeviceAccessWatcher {
 public:
  using FindDenied = std::function<std::set<std::string>()>;
  // `restart` ends the agent so that its container starts again; empty where nothing would start it.
  DeviceAccessWatcher(Loop& loop, Reporter& reporter, FindDenied find_denied, std::function<void()> restart);
  DeviceAccessWatcher(const DeviceAccessWatcher&) = delete;

  // To be called at the start, when the nodes have changed, and when the driver does not respond. What the
  // first call finds is never a reason to restart, because this container is new.
  void check_access();

 private:
  void report_denied(const std::set<std::string>& denied, const std::string& consequence);

  Loop& loop_;
  Reporter& reporter_;
  FindDenied find_denied_;
  std::function<void()> restart_;
  Time started_;
  bool is_first_ = true, restarting_ = false;
  std::set<std::string> denied_at_start_, reported_;
  Subscription recheck_;
};

}  // namespace gpulet::agent
