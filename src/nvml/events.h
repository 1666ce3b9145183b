// Waiting for the driver's events: an event set, and the one thread that sits in nvmlEventSetWait_v2 for it.
#pragma once

#include <functional>
#include <memory>

#include "base/loop.h"
#include "nvml/session.h"

namespace gpulet::nvml {

// How long one wait lasts: as NVIDIA's plugin, 12 wake-ups a minute. It bounds how long the thread outlives
// its waiter.
inline constexpr std::chrono::milliseconds kEventWait{5000};
// Events that the loop has not handled yet; the thread takes no more from the driver until it has. An event
// that is the same as one of these is that one.
inline constexpr std::size_t kMaxPendingEvents = 256;
// The first event is told at once; those that come within so long of it are told together, and from the
// kStormEvents-th on the driver is asked for them only as often. So ten thousand a second cost as little as
// some hundred.
inline constexpr std::chrono::milliseconds kEventPause{5};
inline constexpr std::size_t kStormEvents = 16;
// Threads whose waiter is gone and whose wait has not ended. Beyond it no new one is started.
inline constexpr std::size_t kMaxLeavingWaiters = 8;

// Owns one event set and keeps its Session.
class EventSet {
 public:
  // On the worker, as every call into the driver.
  static Result<std::shared_ptr<const EventSet>> create(std::shared_ptr<const Session> session);
  ~EventSet();
  EventSet(const EventSet&) = delete;

  const Session& session() const { return *session_; }
  void* raw() const { return raw_; }
  // Registers those of `types` that the GPU supports. Returns them; none is no error.
  Result<std::uint64_t> add(Device gpu, std::uint64_t types) const;

 private:
  EventSet(std::shared_ptr<const Session> session, void* raw) : session_(std::move(session)), raw_(raw) {}
  std::shared_ptr<const Session> session_;
  void* raw_;
};

// Destruction waits for nothing: the thread lets go of the set when its wait ends.
class EventWaiter {
 public:
  // All on the loop's thread, none after destruction.
  struct Handlers {
    std::function<void(const Event&)> event;
    std::function<void()> works;       // once: a first wait has ended well
    std::function<void(Error)> ended;  // once: the wait fails; the thread has let go of the set
  };
  // Errors: kUnavailable: no thread, or kMaxLeavingWaiters have not ended yet.
  static Result<std::unique_ptr<EventWaiter>> start(Loop& loop, std::shared_ptr<const EventSet> set,
                                                    Handlers handlers);
  ~EventWaiter();

 private:
  struct State;
  explicit EventWaiter(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

}  // namespace gpulet::nvml
