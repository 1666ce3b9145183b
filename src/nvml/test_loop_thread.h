// A real loop on a thread of its own, for tests that wait for what really happens.
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

namespace gpulet::nvml {

inline constexpr std::chrono::seconds kTestPatience{20};

class LoopThread {
 public:
  LoopThread() : thread_([this] { loop_.run(); }) {}
  ~LoopThread() {
    loop_.stop();
    thread_.join();
  }
  LoopThread(const LoopThread&) = delete;
  Loop& loop() { return loop_; }

  // Runs `task` on the loop and waits for its end.
  void run(std::function<void()> task) {
    // Shared: who sets it is still inside when the waiting one goes on.
    auto ended = std::make_shared<std::promise<void>>();
    auto future = ended->get_future();
    loop_.post([&task, ended] {
      task();
      ended->set_value();
    });
    future.wait();
  }
  // Runs `start(done)` on the loop and waits for what done is called with; nullopt after kTestPatience.
  template <class T>
  std::optional<T> await(std::function<void(std::function<void(T)>)> start) {
    auto answer = std::make_shared<std::promise<T>>();
    auto future = answer->get_future();
    loop_.post([start = std::move(start), answer] {
      start([answer](T value) { answer->set_value(std::move(value)); });
    });
    if (future.wait_for(kTestPatience) != std::future_status::ready) return std::nullopt;
    return future.get();
  }

 private:
  EpollLoop loop_;
  std::thread thread_;
};

// What callbacks gathered, to be waited for.
template <class T>
class Gathered {
 public:
  void add(T value) {
    const std::lock_guard lock(state_->mutex);
    state_->values.push_back(std::move(value));
    state_->changed.notify_all();  // with the lock: the waiting one may destroy this
  }
  // The first `count`, or fewer after `patience`.
  std::vector<T> wait(std::size_t count, std::chrono::milliseconds patience = kTestPatience) const {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait_for(lock, patience, [&] { return state_->values.size() >= count; });
    return state_->values;
  }
  std::size_t size() const { return wait(0).size(); }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<T> values;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace gpulet::nvml
