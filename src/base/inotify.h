// Watches on folders and files through one inotify descriptor on the loop.
//
//   GPULET_TRY_ASSIGN(auto inotify, InotifyWatch::open(loop));
//   GPULET_TRY_ASSIGN(auto folder, inotify->add("/var/lib/kubelet/device-plugins", IN_CREATE | IN_DELETE, on_change));
//
// Loop's thread only. A queue that overflowed is not an error but a loss: every callback is called once with an empty
// name and IN_Q_OVERFLOW, and must look at the world itself.
#pragma once

#include <sys/inotify.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/file.h"
#include "base/loop.h"
#include "base/result.h"

namespace gpulet {

class InotifyWatch {
 public:
  // `name` is the entry inside a watched folder, empty when the event is about the watched path itself.
  // `mask` holds the kernel's bits: IN_IGNORED means that this watch has ended (its path is gone),
  // IN_Q_OVERFLOW that events were lost.
  using Callback = std::function<void(const std::string& name, std::uint32_t mask)>;

  // Errors: kIo where the kernel has no inotify instance left for this user.
  static Result<std::unique_ptr<InotifyWatch>> open(Loop& loop);

  ~InotifyWatch();
  InotifyWatch(const InotifyWatch&) = delete;

  // Calls `callback` for each event of `mask` (IN_CREATE…; IN_ONLYDIR and the like are taken too) on `path`,
  // until the Subscription is gone, also when that happens inside a callback. Any number of watches may share
  // one path.
  // Errors: kNotFound, kPermissionDenied, kIo where the kernel has no watch left.
  Result<Subscription> add(const std::string& path, std::uint32_t mask, Callback callback);

 private:
  struct State;
  explicit InotifyWatch(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace gpulet
