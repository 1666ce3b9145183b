// Watches on directories and files through the one inotify descriptor of a loop.
//
//   GPULET_TRY_ASSIGN(auto watch, watch_events(loop, "/var/lib/kubelet", IN_CREATE | IN_DELETE, on_change));
//
// The descriptor is opened for the first watch and closed with the loop, never earlier: the kernel takes 8 to
// 16 ms to close one (measured on Linux 6.18; it waits until no reader can see a removed watch).
//
// Loop's thread only. If the kernel's queue overflows, every callback is called once with an empty name and
// IN_Q_OVERFLOW, and must read the directory itself.
#pragma once

#include <sys/inotify.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet {

// `name` is the entry in a watched directory, empty for the watched path itself. `mask` has the kernel's
// bits: IN_IGNORED: the watch has ended because its path is gone; IN_Q_OVERFLOW: events were lost.
using InotifyCallback = std::function<void(const std::string& name, std::uint32_t mask)>;

// Calls `callback` for each event of `mask` (IN_CREATE…, also flags such as IN_ONLYDIR) on `path` until the
// Subscription is destroyed, which a callback may do. Several watches may share one path. Errors: kNotFound,
// kPermissionDenied, kIo if this user has no inotify instance or no watch left. Source: inotify(7).
Result<Subscription> watch_events(Loop& loop, const std::string& path, std::uint32_t mask,
                                  InotifyCallback callback);

// Reports that a file may have changed: written in place, replaced by a rename, deleted, recreated, swapped
// by a link in its path (a Kubernetes ConfigMap's `..data`), or closed by a writer, also when the writer
// exits. inotify only: an idle file costs nothing. It watches directories, never the file, so that no
// replacement is missed.

// A burst of changes is reported once, this long after its first change.
inline constexpr Duration kWatchDebounce = std::chrono::milliseconds(10);

// Loop's thread only.
class FileWatcher {
 public:
  // Calls `changed` from the loop after each burst of changes to what `path` leads to. The path need not
  // exist: the nearest existing directory is watched. Errors: kIo if the kernel has no inotify instance or
  // watch left.
  static Result<std::unique_ptr<FileWatcher>> watch_path(Loop& loop, std::string path,
                                                         std::function<void()> changed);

  ~FileWatcher() = default;
  FileWatcher(const FileWatcher&) = delete;

 private:
  // The names to watch, by directory.
  using NamesByDirectory = std::map<std::string, std::set<std::string>>;

  FileWatcher(Loop& loop, std::string path, std::function<void()> changed);
  static NamesByDirectory names_to_watch(const std::string& path);
  Status add_watches();
  void on_event(const std::string& directory, const std::string& name, std::uint32_t mask);
  void on_settled();

  Loop& loop_;
  std::string path_;
  std::function<void()> changed_;
  NamesByDirectory names_;
  std::vector<Subscription> watches_;
  Subscription settling_;
};

}  // namespace gpulet
