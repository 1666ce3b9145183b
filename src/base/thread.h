// Threads that may sit in a call for ever (the driver, a name look-up, a file system), and so are never
// joined: what they need outlives them by shared_ptr, and what they have to say reaches a loop only as long
// as somebody there listens.
#pragma once

#include <functional>
#include <mutex>
#include <string_view>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet {

// Runs `body` on a detached thread that no signal is delivered to. Errors: kUnavailable when the kernel gives
// none: "no thread for <purpose>".
Status start_detached(std::string_view purpose, std::function<void()> body);

// The way from such a thread to the loop, closed by whoever owns the thread before the loop may go.
class Relay {
 public:
  explicit Relay(Loop& loop) : loop_(&loop) {}
  // Any thread. Dropped once closed.
  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) loop_->post(std::move(task));
  }
  void close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Loop* loop_;
};

}  // namespace gpulet
