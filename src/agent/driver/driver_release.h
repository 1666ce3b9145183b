// Why gpulet lets go of the driver: `gpulet driver release`, and the labels with which the GPU operator
// pauses clients of the driver. Released, the agent has no NVML session and no open device node, so that the
// driver can be unloaded, GPUs reset and MIG modes changed by others; devices stay registered and unhealthy.
//
// `gpulet driver release` writes a file in gpulet.stateDir, which the agent follows: a release survives
// restarts and reboots, and can be requested while no agent runs. Text, two lines:
//
//   gpulet-driver-release 1
//   1763712000123 firmware update
//
// The second line has the time (wall-clock milliseconds since 1970) and optionally the reason.
// `gpulet driver acquire` removes the file.
//
// `gpulet mig apply` holds a lock on a second file, and with it the release, for as long as it works: the
// kernel drops the lock when the command ends in any way, so a killed one leaves nothing released.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "agent/node/ports.h"
#include "agent/node/state_file_watcher.h"
#include "base/loop.h"
#include "base/process.h"
#include "base/result.h"

namespace gpulet::agent {

inline constexpr std::size_t kMaxReleaseReason = 256;  // bytes
inline constexpr std::size_t kMaxReleaseBytes = 4096;  // of the file

inline std::string release_path(const std::string& state_dir) { return state_dir + "/driver-release"; }

// An operator's request.
struct ReleaseRequest {
  WallTime at{};       // whole milliseconds
  std::string reason;  // one line, at most kMaxReleaseReason bytes, or empty
  friend bool operator==(const ReleaseRequest&, const ReleaseRequest&) = default;
};

// Pure. The reason is cut to one line of kMaxReleaseReason bytes.
std::string format_release(const ReleaseRequest& request);
// Pure. Errors: kInvalidArgument with the line number.
Result<ReleaseRequest> parse_release(std::string_view text);

// nullopt for a file that does not exist. Errors: those of read_file and parse_release.
Result<std::optional<ReleaseRequest>> read_release(const std::string& path);
// Atomic, 0644; creates directories. Errors: those of write_file_atomic.
Status write_release(const std::string& path, const ReleaseRequest& request);
// Returns whether there was one. Errors: those of errno_error.
Result<bool> remove_release(const std::string& path);

// The second file. Empty; only its lock counts.
inline std::string mig_apply_lock_path(const std::string& state_dir) {
  return state_dir + "/driver-release.mig-apply";
}
inline constexpr std::string_view kMigApplyReason = "gpulet mig apply";
// Requests the release until the result is destroyed. Errors: those of ProcessLock::acquire_lock;
// kFailedPrecondition: another command works.
Result<ProcessLock> lock_release(const std::string& path);

// Of the node labels that place the GPU operator's operands: "nvidia.com/gpu.deploy.device-plugin". Source:
// gpu-operator v26.7.0, controllers/state_manager.go.
inline constexpr std::string_view kOperandLabelPrefix = "nvidia.com/gpu.deploy.";

// Why the driver has to be released now, in one line; nullopt: it has not. Labels count whose key begins with
// kOperandLabelPrefix and whose value begins with "paused-for-": "driver upgrade (node label
// nvidia.com/gpu.deploy.device-plugin=paused-for-driver-upgrade)". Pure.
// Source: k8s-driver-manager v0.12.0 and mig-parted v0.15.0 (mig-manager), maybeSetPaused.
std::optional<std::string> release_reason(const std::optional<ReleaseRequest>& request, bool mig_apply_works,
                                          const std::map<std::string, std::string>& labels);

// Follows the file. Loop's thread only.
class ReleaseWatcher {
 public:
  // Calls `changed` with the request, from here and after each change of the file. A file that cannot be read
  // or watched is reported once; the last known request stays. `loop` and `reporter` outlive it.
  using Changed = std::function<void(const std::optional<ReleaseRequest>&)>;
  ReleaseWatcher(Loop& loop, Reporter& reporter, const std::string& path, Changed changed);

 private:
  StateFileWatcher file_;
};

// While the lock is held it is also checked this often: not every file system reports the end of a lock.
inline constexpr Duration kReleaseLockCheck = std::chrono::seconds(1);

// Follows the lock. Loop's thread only.
class ReleaseLockWatcher {
 public:
  // Calls `changed` from here, and after each change; otherwise as ReleaseWatcher.
  using Changed = std::function<void(bool locked)>;
  ReleaseLockWatcher(Loop& loop, Reporter& reporter, std::string path, Changed changed);

 private:
  Status read_lock();

  Loop& loop_;
  std::string path_;
  Changed changed_;
  std::optional<bool> locked_;
  Subscription check_;
  StateFileWatcher file_;  // last: it reads the file when it is made
};

}  // namespace gpulet::agent
