// The driver's device nodes below the driver root: a watcher of those that appear and disappear, and the
// creation of those that are missing. Without /dev/nvidia-uvm no container can use CUDA; without the nodes of
// /dev/nvidia-caps none can use its MIG device. They come when a module is loaded, often after the agent.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/node/ports.h"
#include "base/file.h"
#include "base/file_watch.h"
#include "base/loop.h"
#include "config/config.h"
#include "inventory/snapshot.h"
#include "mps/control_program.h"

namespace gpulet::agent {

// The node that every CUDA program opens.
inline constexpr const char* kUvmNode = "/dev/nvidia-uvm";

// The roots that may hold the driver's dev/ and proc/, in order: the driver root as the agent sees it, and
// "/".
std::vector<std::string> driver_roots(const config::Config& config);

// The first of driver_roots() whose dev/ has nvidiactl; nullopt if none has.
std::optional<RootDirectory> find_device_root(const config::Config& config);

// The proc/ that has driver/nvidia: that of the root where it has one, as a driver container's and the
// simulator's, else /proc. Errors: those of RootDirectory::open_root.
Result<RootDirectory> open_driver_proc(const RootDirectory& root);
// Below it: the minors of the nodes in /dev/nvidia-caps (inventory/host_files.h).
inline constexpr const char* kMigMinorsBelowProc = "/driver/nvidia-caps/mig-minors";

// Whether a node that is missing in this root's dev/ is missing on the node: true for the driver root; for
// "/" only if /dev is the kernel's devtmpfs, because a container's own /dev has only what its engine put
// there.
bool has_all_device_nodes(const RootDirectory& root);
// Pure, of the text of /proc/self/mountinfo: whether the mount at /dev is a devtmpfs.
bool mounts_devtmpfs(std::string_view mountinfo);

// The paths of the driver's nodes below dev/ of a root, such as "/dev/nvidia0" and
// "/dev/nvidia-caps/nvidia-cap1": whatever is there by these names. Blocks for a few file operations.
std::vector<std::string> list_driver_nodes(const RootDirectory& root);

// Why no container of this node can use CUDA: "/dev/nvidia-uvm is missing: …". Empty if the node is there, or
// if that is not known (has_all_device_nodes). Blocks for a few file operations.
std::string find_compute_problem(const RootDirectory& root);

struct DeviceNodeSpec {
  std::string path;  // "/dev/nvidia-caps/nvidia-cap30"
  dev_t device = 0;
  mode_t mode = 0;
  friend bool operator==(const DeviceNodeSpec&, const DeviceNodeSpec&) = default;
};

// The nodes of nvidia-uvm, where that module is loaded, of the snapshot's MIG devices, and, where MIG is on,
// the one of the right to monitor them, which the agent itself needs unless it has CAP_SYS_ADMIN. Pure.
// `proc_devices`: the text of /proc/devices; `mig_minors`: of /proc/driver/nvidia-caps/mig-minors.
// Modes are those of nvidia-modprobe: 0666, and 0444 for capabilities.
std::vector<DeviceNodeSpec> required_device_nodes(std::string_view proc_devices, std::string_view mig_minors,
                                                  const inventory::Snapshot* snapshot);

// Follows the driver's device nodes below dev/ of driver_roots(): nvidia*, nvidia-caps/* and
// nvidia-caps-imex-channels/*. inotify only: idle nodes cost nothing. Loop's thread only.
class DeviceNodeWatcher {
 public:
  // `changed` is called from the loop, within 100 ms, when a node was created, removed or replaced, or its
  // mode has changed. Never from inside watch_roots. A node that is as before when a burst is over is no
  // change, unless `is_missed` says that somebody saw it missing in between and goes by that; may be empty.
  DeviceNodeWatcher(Loop& loop, std::function<void()> changed, std::function<bool()> is_missed = {});
  DeviceNodeWatcher(const DeviceNodeWatcher&) = delete;

  // Watches these roots; the same roots again only cover directories that a mount has replaced since, which
  // inotify does not report. Cheap where nothing differs.
  void watch_roots(const std::vector<std::string>& roots);

 private:
  void add_watches();
  void on_event(const std::string& name, std::uint32_t mask);
  void on_settled();

  Loop& loop_;
  std::function<void()> changed_;
  std::function<bool()> is_missed_;
  std::vector<std::string> roots_;
  std::string directories_seen_;  // identities of the watched directories
  std::string nodes_seen_;        // names, numbers and modes
  std::vector<Subscription> watches_;
  Subscription settling_;
};

// Creates required_device_nodes() that are missing, in the root of find_device_root(). Where nvidia-uvm is
// not loaded, runs the driver root's `nvidia-modprobe -u -c 0` once, if the agent may load modules
// (CAP_SYS_MODULE). A failure is reported once, until another one or a success follows. Blocks for a few file
// operations; loop's thread only.
class DeviceNodeCreator {
 public:
  DeviceNodeCreator(Loop& loop, Reporter& reporter) : loop_(loop), reporter_(reporter) {}
  DeviceNodeCreator(const DeviceNodeCreator&) = delete;
  // `snapshot` may be null. Returns whether it has created any.
  bool create_missing_nodes(const config::Config& config, const inventory::Snapshot* snapshot);

 private:
  void load_uvm(const std::string& driver_root);
  void report_failure(const std::string& message);

  Loop& loop_;
  Reporter& reporter_;
  std::string reported_;
  bool load_tried_ = false;
  std::unique_ptr<mps::ProgramCall> modprobe_;
};

}  // namespace gpulet::agent
