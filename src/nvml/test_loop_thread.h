// A real loop on its own thread, for tests with real events.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/loop.h"
#include "base/test_loop.h"

namespace gpulet::nvml {

inline constexpr std::chrono::seconds kTestPatience{20};

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.run_loop(); }) {}
  ~LoopThread() {
    loop_.stop_loop();
    thread_.join();
  }
  LoopThread(const LoopThread&) = delete;
  Loop& loop() { return loop_; }

  // Runs `task` on the loop and waits until it is done.
  void run_on_loop(const std::function<void()>& task) { test::call_on_loop(loop_, task); }
  // Runs `start(done)` on the loop and returns what `done` is called with; nullopt after
  // kTestPatience.
  template <class T>
  std::optional<T> await(std::function<void(std::function<void(T)>)> start) {
    auto promise = std::make_shared<std::promise<T>>();
    auto future = promise->get_future();
    loop_.post([start = std::move(start), promise] {
      start([promise](T value) { promise->set_value(std::move(value)); });
    });
    if (future.wait_for(kTestPatience) != std::future_status::ready) return std::nullopt;
    return future.get();
  }

 private:
  EpollLoop loop_;
  std::thread thread_;
};

// Collects values from callbacks and waits for them.
template <class T>
class Collected {
 public:
  void push_value(T value) {
    const std::lock_guard lock(state_->mutex);
    state_->values.push_back(std::move(value));
    state_->changed.notify_all();  // under the lock: the waiter may destroy this
  }
  // The first `count` values, or fewer after `patience`.
  std::vector<T> wait_for_values(std::size_t count,
                                 std::chrono::milliseconds patience = kTestPatience) const {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, patience, [&] { return state_->values.size() >= count; });
    return state_->values;
  }
  std::size_t size() const { return wait_for_values(0).size(); }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<T> values;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace gpulet::nvml
