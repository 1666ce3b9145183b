// A loop whose clock stands still until a test moves it: no thread, no descriptor, no sleep. The seeded
// simulation replays a whole node's hours on it in milliseconds, the same way for the same seed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "base/loop.h"

namespace gpulet {

class ManualLoop final : public Loop {
 public:
  Time now() const override { return state_->now; }
  WallTime wall_now() const override {
    return WallTime(std::chrono::duration_cast<WallTime::duration>(state_->now.time_since_epoch()));
  }
  void post(std::function<void()> task) override { state_->posted.push_back(std::move(task)); }
  Subscription after(Duration delay, std::function<void()> task) override;
  // Descriptors never become ready here: what would watch one is fed by the test itself.
  Subscription watch(int, std::uint32_t, std::function<void(std::uint32_t)>) override { return {}; }

  // Runs what is posted, and what that posts, without moving the clock. Returns how many tasks ran.
  // Stops after `limit` tasks: two tasks that post each other for ever fail a test instead of hanging it.
  std::size_t run_ready(std::size_t limit = 100'000);

  // Moves the clock on by `step`, running every timer on its way at its own time, in order, and what it
  // posts.
  void advance(Duration step);

  // Timers not yet due: a test asserts that nothing is left behind.
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

}  // namespace gpulet
