#include "base/manual_loop.h"

#include <algorithm>

namespace gpulet {

Subscription ManualLoop::after(Duration delay, std::function<void()> task) {
  const std::pair key{state_->now + std::max(delay, Duration::zero()), state_->next_id++};
  state_->timers.emplace(key, std::move(task));
  return Subscription([weak = std::weak_ptr(state_), key] {
    if (auto state = weak.lock()) state->timers.erase(key);
  });
}

std::size_t ManualLoop::run_ready(std::size_t limit) {
  std::size_t ran = 0;
  while (!state_->posted.empty() && ran < limit) {
    auto task = std::move(state_->posted.front());
    state_->posted.pop_front();
    task();
    ++ran;
  }
  return ran;
}

void ManualLoop::advance(Duration step) {
  const Time end = state_->now + step;
  run_ready();
  while (!state_->timers.empty() && state_->timers.begin()->first.first <= end) {
    auto node = state_->timers.extract(state_->timers.begin());
    state_->now = std::max(state_->now, node.key().first);
    node.mapped()();
    run_ready();
  }
  state_->now = end;
}

}  // namespace gpulet
