// Waits for driver events: an event set, and the one thread that blocks in nvmlEventSetWait_v2 for
// it.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// Timeout of one wait: 30 wake-ups a minute. It bounds how long the thread outlives its waiter, and so
// how long a release of the driver takes, as nothing is documented to end a wait early.
inline constexpr std::chrono::milliseconds kEventWaitTimeout{2000};
// Events that the loop has not handled yet. At this limit the thread stops reading from the driver.
// Equal pending events are merged.
inline constexpr std::size_t kMaxPendingEvents = 256;
// The first event is delivered at once. Events that follow within this interval are delivered
// together. After kStormEvents in a row the thread reads from the driver only once per interval, so
// ten thousand events a second cost as little as a few hundred.
inline constexpr std::chrono::milliseconds kEventBatchInterval{5};
inline constexpr std::size_t kStormEvents = 16;
// Threads whose waiter is destroyed but whose wait has not returned. Above this limit no new thread
// is started.
inline constexpr std::size_t kMaxStoppingWaiters = 8;

// Owns one event set and keeps its Session alive.
class EventSet {
 public:
  // Call it on the worker, like every call into the driver.
  static Result<std::shared_ptr<const EventSet>> create_event_set(std::shared_ptr<const Session> session);
  ~EventSet();
  EventSet(const EventSet&) = delete;

  const Session& session() const { return *session_; }
  void* raw() const { return raw_; }
  // Registers those of `types` that the GPU supports, and returns them. An empty result is not an
  // error.
  Result<std::uint64_t> register_device(Device gpu, std::uint64_t types) const;

 private:
  EventSet(std::shared_ptr<const Session> session, void* raw) : session_(std::move(session)), raw_(raw) {}
  std::shared_ptr<const Session> session_;
  void* raw_;
};

// The destructor does not block: the thread releases the set when its wait returns.
class EventWaiter {
 public:
  // All are called on the loop's thread, never after destruction.
  struct Handlers {
    std::function<void(const Event&)> event;
    std::function<void()> started;     // once: the first wait has succeeded
    std::function<void(Error)> ended;  // once: the wait failed; the thread has released the set
  };
  // Errors: kUnavailable if no thread can be started, or kMaxStoppingWaiters have not returned yet.
  static Result<std::unique_ptr<EventWaiter>> start_waiting(Loop& loop, std::shared_ptr<const EventSet> set,
                                                            Handlers handlers);
  ~EventWaiter();

 private:
  struct State;
  explicit EventWaiter(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace gpulet::nvml
