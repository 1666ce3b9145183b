// The event loop: one thread that owns all mutable state of a process and provides time and readiness. Tests
// drive the same code with a ManualLoop and its manual clock. Also here: detached threads and their relay to
// the loop, backoff, and the lifetime of objects that have callbacks.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
namespace gpulet {

using Duration = std::chrono::nanoseconds;
// Monotonic time since an arbitrary start; never the wall clock.
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;
using WallTime = std::chrono::system_clock::time_point;

// Owns a timer or a watched descriptor; destroying it ends the watch, also from its own callback. May be
// empty.
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

struct LoopInotify;

class Loop {
 public:
  virtual ~Loop() = default;

  virtual Time now() const = 0;
  virtual WallTime wall_now() const = 0;

  // Queues `task` for the loop's thread. The only member that any thread may call.
  virtual void post(std::function<void()> task) = 0;

  // Runs `task` once after `delay`, on the next turn at the earliest, unless the Subscription is destroyed
  // before.
  virtual Subscription after(Duration delay, std::function<void()> task) = 0;

  // Runs `task(events)` whenever `fd` has one of `events` (EPOLLIN…), level-triggered. The caller keeps `fd`
  // open longer than the Subscription. Precondition: fd is open and not watched yet.
  virtual Subscription watch_descriptor(int fd, std::uint32_t events,
                                        std::function<void(std::uint32_t)> task) = 0;

 private:
  friend Result<Subscription> watch_events(Loop& loop, const std::string& path, std::uint32_t mask,
                                           std::function<void(const std::string&, std::uint32_t)> callback);
  std::shared_ptr<LoopInotify> inotify_;  // base/file_watch.h
};

// The production loop: epoll, a deadline heap, an eventfd for posts. One thread calls run_loop().
class EpollLoop final : public Loop {
 public:
  EpollLoop();
  ~EpollLoop() override;

  Time now() const override;
  WallTime wall_now() const override;
  void post(std::function<void()> task) override;
  Subscription after(Duration delay, std::function<void()> task) override;
  Subscription watch_descriptor(int fd, std::uint32_t events,
                                std::function<void(std::uint32_t)> task) override;

  // Runs until stop_loop(); returns at once if that came first. May be called again.
  void run_loop();
  // Ends run_loop() after the current task. Any thread.
  void stop_loop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// A loop with a clock that only tests move: no thread, no descriptor, no sleep.

class ManualLoop final : public Loop {
 public:
  Time now() const override { return state_->now; }
  WallTime wall_now() const override {
    return WallTime(std::chrono::duration_cast<WallTime::duration>(state_->now.time_since_epoch()));
  }
  void post(std::function<void()> task) override { state_->posted.push_back(std::move(task)); }
  Subscription after(Duration delay, std::function<void()> task) override;
  // Descriptors never become ready; the test calls the code behind them.
  Subscription watch_descriptor(int, std::uint32_t, std::function<void(std::uint32_t)>) override {
    return {};
  }

  // Runs posted tasks, and those that they post, without moving the clock. Returns the number of tasks. Stops
  // after `limit`, so that tasks that keep posting each other fail a test instead of hanging it.
  std::size_t run_ready(std::size_t limit = 100'000);

  // Moves the clock by `step` and runs every timer on the way at its time, with the tasks that it posts.
  void advance(Duration step);

  // Number of timers that are not due yet.
  std::size_t pending_timers() const { return state_->timers.size(); }

 private:
  struct State {
    Time now{};
    std::uint64_t next_id = 0;
    std::deque<std::function<void()>> posted;
    std::map<std::pair<Time, std::uint64_t>, std::function<void()>> timers;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Runs `body` on a detached thread with all signals blocked. For calls that may never return (the driver,
// name resolution, a file system): such a thread is never joined, so shared_ptr keeps what it uses, and a
// LoopRelay carries its results. Errors: kUnavailable if the kernel has no thread left: "no thread for
// <purpose>".

Status start_detached_thread(std::string_view purpose, std::function<void()> body);

// Posts from such a thread to the loop. Its owner closes it before the loop is destroyed.
class LoopRelay {
 public:
  explicit LoopRelay(Loop& loop) : loop_(&loop) {}
  // Any thread. Drops the task once closed.
  void post_to_loop(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) loop_->post(std::move(task));
  }
  void close_relay() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  Loop* loop_;
};

// Exponential backoff with jitter: each delay is between half and the whole of a step that doubles up to
// `max`.

struct BackoffLimits {
  Duration first;  // upper limit of the first delay
  Duration max;    // upper limit of all delays
};

// 32 bytes, because each failing Pod, node and connection has one; a Mersenne Twister has 2.5 KiB.
class Backoff {
 public:
  // Instances that start together need different seeds; consecutive seeds are fine.
  Backoff(BackoffLimits limits, std::uint64_t seed) : limits_(limits), next_(limits.first), random_(seed) {}

  //
  Duration next_delay() {
    const Duration step = next_;
    next_ = std::min(next_ * 2, limits_.max);
    const auto half = step.count() / 2;
    const auto choices = static_cast<std::uint64_t>(step.count() - half) + 1;
    return Duration(half + static_cast<std::int64_t>(random() % choices));
  }
  // Call after a success: the next delay starts from `first` again.
  void reset() { next_ = limits_.first; }

 private:
  // SplitMix64: neighbouring seeds give unrelated numbers. Source: Steele, Lea and Flood, "Fast
  // splittable pseudorandom number generators", OOPSLA 2014.
  std::uint64_t random() {
    std::uint64_t mixed = (random_ += 0x9e3779b97f4a7c15);
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return mixed ^ (mixed >> 31);
  }

  BackoffLimits limits_;
  Duration next_;
  std::uint64_t random_;
};

// Whether an object is still there, for callbacks that may come after it has gone:
//
//   loop_.post([this, alive = lifetime_.watch()] {
//     if (alive) finish();
//   });
//
// The last member of its class where callbacks use the other members. Copied and dropped by any thread, asked
// by the one that destroys the object.
class Lifetime {
 public:
  class Watch {
   public:
    explicit operator bool() const { return !token_.expired(); }

   private:
    friend class Lifetime;
    explicit Watch(std::weak_ptr<const void> token) : token_(std::move(token)) {}
    std::weak_ptr<const void> token_;
  };

  Lifetime() = default;
  // A copy would outlive its object.
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;

  Watch watch() const { return Watch(token_); }

 private:
  std::shared_ptr<const char> token_ = std::make_shared<const char>('\0');
};

}  // namespace gpulet
