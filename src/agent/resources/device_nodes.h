// The driver's device nodes below the driver root, and a watcher of those that appear and disappear. Without
// /dev/nvidia-uvm no container can use CUDA; without the nodes of /dev/nvidia-caps none can use its MIG
// device. They come when a module is loaded, often after the agent.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/file_watch.h"
#include "base/loop.h"
#include "config/config.h"

namespace gpulet::agent {

// The node that every CUDA program opens.
inline constexpr const char* kUvmNode = "/dev/nvidia-uvm";

// The roots that may hold the driver's dev/ and proc/, in order: the driver root as the agent sees it, and
// "/".
std::vector<std::string> driver_roots(const config::Config& config);

// The first of driver_roots() whose dev/ has nvidiactl; nullopt if none has.
std::optional<RootDirectory> find_device_root(const config::Config& config);

// Whether a node that is missing in this root's dev/ is missing on the node: true for the driver root; for
// "/" only if /dev is the kernel's devtmpfs, because a container's own /dev has only what its engine put
// there.
bool has_all_device_nodes(const RootDirectory& root);
// Pure, of the text of /proc/self/mountinfo: whether the mount at /dev is a devtmpfs.
bool mounts_devtmpfs(std::string_view mountinfo);

// Why no container of this node can use CUDA: "/dev/nvidia-uvm is missing: …". Empty if the node is there, or
// if that is not known (has_all_device_nodes). Blocks for a few file operations.
std::string find_compute_problem(const RootDirectory& root);

// Follows the driver's device nodes below dev/ of driver_roots(): nvidia*, nvidia-caps/* and
// nvidia-caps-imex-channels/*. inotify only: idle nodes cost nothing. Loop's thread only.
class DeviceNodeWatcher {
 public:
  // `changed` is called from the loop, within 100 ms, when a node was created, removed or replaced, or its
  // mode has changed. Never from inside watch_roots.
  DeviceNodeWatcher(Loop& loop, std::function<void()> changed);
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
  std::vector<std::string> roots_;
  std::string directories_seen_;  // identities of the watched directories
  std::string nodes_seen_;        // names, numbers and modes
  std::unique_ptr<InotifyWatcher> inotify_;
  std::vector<Subscription> watches_;
  Subscription settling_;
};

}  // namespace gpulet::agent
