// The thread that calls the driver, with its watchdog. It runs calls one after another, in the
// order in which they are submitted; a hanging call blocks nothing else:
//   After kSlowCallLimit the calls behind it continue on another thread, while the slow call may
//   still return.
//   At its deadline the caller gets kDeadlineExceeded and the thread is abandoned: if the call ever
//   returns, its result is dropped on that thread. Until then, calls with the same subject are
//   rejected at once, because they would hang too.
// A call may also be repeated there, for readings whose result seldom matters.
// Use it on the loop's thread only. Callbacks run there, never after destruction. The destructor
// does not block: a thread inside the driver ends when its call returns, or with the process (which
// must exit with _exit, so that no static destructor runs under such a thread).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::nvml {

inline constexpr std::string_view kDriverThreadName = "the driver";

// Marks the calling thread as a loop's: destructors that call the driver then run on a separate
// thread. Worker marks the thread that creates it.
void forbid_blocking_here();
// Whether this thread may call the driver and block: any but a loop's.
bool may_block_here();

// Deleter for objects whose destructor calls the driver. If no thread can be started for it, the
// object leaks.
template <class T>
void delete_off_loop(const T* held) {
  if (may_block_here()) {
    delete held;
    return;
  }
  [[maybe_unused]] const auto started = start_detached_thread(kDriverThreadName, [held] { delete held; });
}

// After this the queue continues on another thread.
inline constexpr Duration kSlowCallLimit = std::chrono::milliseconds(200);
// Calls that never returned, each holding a thread. At this limit every call fails until one
// returns.
inline constexpr std::size_t kMaxAbandoned = 16;
inline constexpr std::size_t kMaxQueuedCalls = 1024;
// Calls that the thread has at most: the one that it runs, and the next ones.
inline constexpr std::size_t kMaxAssigned = 32;

struct Call {
  std::string name;     // "reading GPU 3", for errors
  std::string subject;  // calls with the same subject never run concurrently; empty: no subject
  Duration deadline{};  // from the start of the call, as far as the loop knows it
};

class Worker {
 public:
  explicit Worker(Loop& loop);  // marks this thread: see forbid_blocking_here
  ~Worker();
  Worker(const Worker&) = delete;

  // Runs `work` on the worker's thread, then `done` on the loop, never from inside this call.
  // Errors, besides those of `work`: kDeadlineExceeded; kUnavailable if kMaxAbandoned calls hang or
  // the queue is full.
  template <class T>
  void run_call(Call call, std::function<Result<T>()> work, std::function<void(Result<T>)> done) {
    // Shared, so that a late result still has a place to go.
    auto result = std::make_shared<std::optional<Result<T>>>();
    submit(
        std::move(call), [result, work = std::move(work)] { result->emplace(work()); },
        [result, done = std::move(done)](std::optional<Error> failure) {
          if (failure) {
            done(fail(std::move(*failure)));
          } else {
            done(std::move(**result));
          }
        });
  }

  // Runs `work` every `interval` on the worker's thread, between its other calls and without a turn of the
  // loop, until it returns true; then `ended` is called on the loop. It has no deadline of its own: what
  // notices a hang is a call that waits behind it; the thread is then left to it, and `ended` gets
  // kDeadlineExceeded. Other errors: kUnavailable: another call is slow, or a repetition that was ended has
  // not returned. One at a time: the next one, and the end of the Subscription, ends it without `ended`.
  // Destroying `work` must not call the driver.
  using Ended = std::function<void(Status)>;
  Subscription repeat_call(std::string name, Duration interval, std::function<bool()> work, Ended ended);

  // Accepts the subjects of abandoned calls again, after the driver was initialised again.
  void readmit_subjects();
  std::size_t abandoned() const;
  // Calls that returned, late ones and ended repetitions included, and their total time.
  std::uint64_t completed_calls() const;
  Duration driver_time() const;

 private:
  void submit(Call call, std::function<void()> work, std::function<void(std::optional<Error>)> done);
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gpulet::nvml
