// The thread that calls the driver, and its watchdog. The loop hands it one call at a time; a call that does not come
// back holds nothing else up:
//   after kPatience the queue goes on with another thread, while the slow call may still answer;
//   at its deadline the caller gets kDeadlineExceeded. The thread is abandoned: should its call ever return, the result
//   is dropped, on that thread. Until then calls about the same subject are refused at once, as they would hang too.
// Loop's thread only; the callbacks come there, none after destruction. Destruction waits for nothing: a thread inside
// the driver ends when its call returns, or with the process (which must leave by _exit, so that no static destructor
// runs under such a thread).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::nvml {

inline constexpr Duration kPatience = std::chrono::milliseconds(200);
// Calls that never returned, of which each holds a thread. Beyond it every call fails until one returns.
inline constexpr std::size_t kMaxAbandoned = 16;
inline constexpr std::size_t kMaxQueuedCalls = 1024;

struct Call {
  std::string name;     // "reading GPU 3", for errors
  std::string subject;  // calls about one subject never run at the same time; empty: about no one in particular
  Duration deadline{};  // from when it starts
};

class Worker {
 public:
  explicit Worker(Loop& loop);  // marks this thread: see never_block_here
  ~Worker();
  Worker(const Worker&) = delete;

  // Runs `work` on the worker's thread, then `done` on the loop, always later than this call.
  // Errors, beside work's own: kDeadlineExceeded; kUnavailable when kMaxAbandoned calls hang, or the queue is full.
  template <class T>
  void run(Call call, std::function<Result<T>()> work, std::function<void(Result<T>)> done) {
    // Shared, as a result that comes too late must have somewhere to go.
    auto answer = std::make_shared<std::optional<Result<T>>>();
    submit(std::move(call), [answer, work = std::move(work)] { answer->emplace(work()); },
           [answer, done = std::move(done)](std::optional<Error> failure) {
             if (failure) {
               done(fail(std::move(*failure)));
             } else {
               done(std::move(**answer));
             }
           });
  }

  // The driver was initialised anew: subjects of abandoned calls may be asked again.
  void forgive();
  std::size_t abandoned() const;
  // Calls that came back, late ones included, and the time that they took.
  std::uint64_t calls() const;
  Duration time() const;

 private:
  void submit(Call call, std::function<void()> work, std::function<void(std::optional<Error>)> done);
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gpulet::nvml
