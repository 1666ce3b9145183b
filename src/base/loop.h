// The event loop: one thread that owns all mutable state of a process. Time and readiness come from it, so
// that a test drives the same code by a ManualLoop with a clock of its own (base/manual_loop.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace gpulet {

using Duration = std::chrono::nanoseconds;
// Monotonic time since an arbitrary start; never the wall clock.
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using WallTime = std::chrono::system_clock::time_point;

// Owns one timer or one watched descriptor: destroying it ends the watch, also from inside its own callback.
// An empty one does nothing.
class [[nodiscard]] Subscription {
 public:
  Subscription() = default;
  explicit Subscription(std::function<void()> cancel) : cancel_(std::move(cancel)) {}
  Subscription(Subscription&& other) noexcept : cancel_(std::exchange(other.cancel_, nullptr)) {}
  Subscription& operator=(Subscription&& other) noexcept {
    if (this != &other) {
      reset();
      cancel_ = std::exchange(other.cancel_, nullptr);
    }
    return *this;
  }
  ~Subscription() { reset(); }
  void reset() {
    if (auto cancel = std::exchange(cancel_, nullptr)) cancel();
  }
  explicit operator bool() const { return static_cast<bool>(cancel_); }

 private:
  std::function<void()> cancel_;
};

class Loop {
 public:
  virtual ~Loop() = default;

  virtual Time now() const = 0;
  virtual WallTime wall_now() const = 0;

  // Runs `task` on the loop's thread, after what is queued already. The only member that any thread may call.
  virtual void post(std::function<void()> task) = 0;

  // Runs `task` once, `delay` from now (at least on the next turn), unless the Subscription is gone by then.
  virtual Subscription after(Duration delay, std::function<void()> task) = 0;

  // Runs `task(events)` whenever `fd` has one of `events` (EPOLLIN…), level-triggered. The caller keeps `fd`
  // open longer than the Subscription. Precondition: fd is open and not watched yet.
  virtual Subscription watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> task) = 0;
};

// The real one: epoll, a timerfd-free deadline heap, an eventfd for posts. One thread calls run().
class EpollLoop final : public Loop {
 public:
  EpollLoop();
  ~EpollLoop() override;

  Time now() const override;
  WallTime wall_now() const override;
  void post(std::function<void()> task) override;
  Subscription after(Duration delay, std::function<void()> task) override;
  Subscription watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> task) override;

  // Runs until stop(). Returns at once if stop() came first. May be called again.
  void run();
  // Ends run() after the task under way. Any thread.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gpulet
