#include "agent/power/wall_timer.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/file.h"

namespace gpulet::agent {
namespace {

// Without a descriptor: a clock that is set is noticed within this time.
constexpr Duration kWallTimerRetry = std::chrono::minutes(1);

}  // namespace

Subscription run_at_wall_time(Loop& loop, WallTime when, std::function<void()> task) {
  const auto since = when.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  itimerspec time{};
  time.it_value.tv_sec = static_cast<std::time_t>(seconds.count());
  time.it_value.tv_nsec =
      static_cast<long>(std::chrono::duration_cast<std::chrono::nanoseconds>(since - seconds).count());
  auto timer = std::make_shared<FileDescriptor>(::timerfd_create(CLOCK_REALTIME, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer->is_open() ||
      ::timerfd_settime(timer->get(), TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET, &time, nullptr) != 0) {
    const auto wait = std::chrono::duration_cast<Duration>(when - loop.wall_now());
    return loop.after(std::clamp<Duration>(wait, Duration::zero(), kWallTimerRetry), std::move(task));
  }
  auto watch = std::make_shared<Subscription>();
  *watch = loop.watch_descriptor(timer->get(), EPOLLIN, [timer, task = std::move(task)](std::uint32_t) {
    std::uint64_t expirations = 0;
    // ECANCELED where the clock was set.
    [[maybe_unused]] const auto got = ::read(timer->get(), &expirations, sizeof expirations);
    task();
  });
  return Subscription([timer, watch] { watch->reset(); });
}

}  // namespace gpulet::agent
