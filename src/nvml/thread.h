// Threads that may sit in the driver for ever, and so can never be joined: what they need outlives them by shared_ptr,
// and what they have to say reaches a loop only as long as somebody there listens.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::nvml {

// Runs `body` on a detached thread that no signal is delivered to. Errors: kUnavailable when the kernel gives none.
Status start_detached(std::function<void()> body);

// The calling thread is a loop's: what would call the driver when it is destroyed there goes on a thread of its own.
// Worker says so of the thread that it is made on.
void never_block_here();
bool may_block_here();

// The deleter of whatever calls the driver when it goes. Where no thread can be had for it, it is left as it is.
template <class T>
void dispose(const T* held) {
  if (may_block_here()) {
    delete held;
    return;
  }
  [[maybe_unused]] const auto started = start_detached([held] { delete held; });
}

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

}  // namespace gpulet::nvml
