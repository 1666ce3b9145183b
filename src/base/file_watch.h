// Tells when a file may have changed: written in place, replaced by a rename, deleted, back again, or swapped
// by a link on the way to it (a Kubernetes ConfigMap's `..data`, a config manager's link). Also when whoever
// had it open for writing has closed it, by its end too. inotify only: an idle file costs nothing. It watches
// the folders, never the file, so that no replacement is missed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/inotify.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet {

// Changes in a burst are told once, this long after the first of them.
inline constexpr Duration kWatchDebounce = std::chrono::milliseconds(10);

// Loop's thread only.
class FileWatch {
 public:
  // `changed` is called from the loop after each burst of changes to what `path` leads to. Nothing need exist
  // yet: the nearest folder that does is watched. Errors: kIo where the kernel has no inotify instance or
  // watch left.
  static Result<std::unique_ptr<FileWatch>> start(Loop& loop, std::string path,
                                                  std::function<void()> changed);

  ~FileWatch() = default;
  FileWatch(const FileWatch&) = delete;

 private:
  // The names that matter, by folder.
  using Places = std::map<std::string, std::set<std::string>>;

  FileWatch(Loop& loop, std::string path, std::function<void()> changed,
            std::unique_ptr<InotifyWatch> inotify);
  static Places places_of(const std::string& path);
  Status arm();
  void on_event(const std::string& folder, const std::string& name, std::uint32_t mask);
  void on_settled();

  Loop& loop_;
  std::string path_;
  std::function<void()> changed_;
  std::unique_ptr<InotifyWatch> inotify_;
  Places places_;
  std::vector<Subscription> watches_;
  Subscription settling_;
};

}  // namespace gpulet
