// One folder's entries, also before the folder exists and after it was removed and made anew: while it is not there,
// the nearest ancestor that is there is watched until it comes.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/inotify.h"
#include "base/loop.h"

namespace gpulet::kubelet {

// Loop's thread only.
class DirectoryWatch {
 public:
  struct Events {
    // `name` came to be (created, or moved here) or went away.
    std::function<void(const std::string& name, bool created)> changed;
    // The folder came, went or events were lost: look at all of it.
    std::function<void()> rescan;
  };
  // Neither callback comes from inside open(). Errors: as InotifyWatch::open.
  static Result<std::unique_ptr<DirectoryWatch>> open(Loop& loop, std::string directory, Events events);

 private:
  DirectoryWatch(std::string directory, Events events, std::unique_ptr<InotifyWatch> inotify);
  // Watches the folder or else its nearest ancestor. True when it is the folder itself.
  bool attach();
  void on_entry(const std::string& name, std::uint32_t mask);
  void on_ancestor(std::uint32_t mask);
  void lost();

  std::string directory_;
  Events events_;
  std::unique_ptr<InotifyWatch> inotify_;
  Subscription watch_;
};

}  // namespace gpulet::kubelet
