// For tests whose loop runs in a thread of its own.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>

#include "base/loop.h"

namespace gpulet::test {

// Runs `task` on the loop and waits until it is done.
inline void call_on_loop(Loop& loop, const std::function<void()>& task) {
  // Shared, because the setter may still be inside when the waiter continues.
  const auto ended = std::make_shared<std::promise<void>>();
  auto future = ended->get_future();
  loop.post([&task, ended] {
    task();
    ended->set_value();
  });
  future.wait();
}

// Whether the condition becomes true within 30 s, for what no event announces.
template <class Condition>
bool becomes_true(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    ::poll(nullptr, 0, 2);
  }
  return false;
}

}  // namespace gpulet::test
