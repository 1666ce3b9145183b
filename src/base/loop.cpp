#include "base/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <vector>

namespace gpulet {

struct EpollLoop::State {
  int epoll = ::epoll_create1(EPOLL_CLOEXEC);
  int wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::atomic<bool> stopping{false};

  std::mutex mutex;  // guards `posted` only
  std::vector<std::function<void()>> posted;

  std::uint64_t next_id = 1;
  std::map<std::pair<Time, std::uint64_t>, std::function<void()>> timers;
  // By id, not by descriptor: a descriptor closed and reused within one turn must not get the old one's
  // events.
  struct Watched {
    int fd;
    std::shared_ptr<std::function<void(std::uint32_t)>> task;
  };
  std::map<std::uint64_t, Watched> watched;

  ~State() {
    ::close(epoll);
    ::close(wake);
  }

  void ring() {
    const std::uint64_t one = 1;
    // A full counter already wakes the loop, so a failed write loses nothing.
    [[maybe_unused]] auto written = ::write(wake, &one, sizeof one);
  }

  int timeout_ms(Time now) {
    {
      std::lock_guard lock(mutex);
      if (!posted.empty()) return 0;
    }
    if (timers.empty()) return -1;
    const auto wait = timers.begin()->first.first - now;
    if (wait <= Duration::zero()) return 0;
    // Rounded up, else the last millisecond before a timer would be spent spinning.
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(wait).count();
    return static_cast<int>(std::min<std::int64_t>(ms, 3'600'000));
  }

  void run_posted() {
    std::vector<std::function<void()>> batch;
    {
      std::lock_guard lock(mutex);
      batch.swap(posted);
    }
    for (auto& task : batch) {
      if (stopping) return;
      task();
    }
  }

  void run_timers(Time now) {
    while (!stopping && !timers.empty() && timers.begin()->first.first <= now) {
      auto node = timers.extract(timers.begin());
      node.mapped()();
    }
  }
};

EpollLoop::EpollLoop() : state_(std::make_shared<State>()) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
  ::epoll_ctl(state_->epoll, EPOLL_CTL_ADD, state_->wake, &event);
}

EpollLoop::~EpollLoop() = default;

Time EpollLoop::now() const { return std::chrono::steady_clock::now(); }
WallTime EpollLoop::wall_now() const { return std::chrono::system_clock::now(); }

void EpollLoop::post(std::function<void()> task) {
  bool first;
  {
    std::lock_guard lock(state_->mutex);
    first = state_->posted.empty();
    state_->posted.push_back(std::move(task));
  }
  if (first) state_->ring();
}

Subscription EpollLoop::after(Duration delay, std::function<void()> task) {
  const std::pair key{now() + std::max(delay, Duration::zero()), state_->next_id++};
  state_->timers.emplace(key, std::move(task));
  return Subscription([weak = std::weak_ptr(state_), key] {
    if (auto state = weak.lock()) state->timers.erase(key);
  });
}

Subscription EpollLoop::watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> task) {
  const std::uint64_t id = state_->next_id++;
  epoll_event event{.events = events, .data = {.u64 = id}};
  if (::epoll_ctl(state_->epoll, EPOLL_CTL_ADD, fd, &event) != 0) return {};
  state_->watched[id] = {fd, std::make_shared<std::function<void(std::uint32_t)>>(std::move(task))};
  return Subscription([weak = std::weak_ptr(state_), id] {
    auto state = weak.lock();
    if (!state) return;
    auto it = state->watched.find(id);
    if (it == state->watched.end()) return;
    ::epoll_ctl(state->epoll, EPOLL_CTL_DEL, it->second.fd, nullptr);
    state->watched.erase(it);
  });
}

void EpollLoop::run() {
  auto state = state_;
  while (!state->stopping) {
    std::array<epoll_event, 32> events;
    const int count = ::epoll_wait(state->epoll, events.data(), events.size(), state->timeout_ms(now()));
    for (int i = 0; i < count && !state->stopping; ++i) {
      if (events[i].data.u64 == 0) {
        std::uint64_t rings;
        [[maybe_unused]] auto got = ::read(state->wake, &rings, sizeof rings);
        continue;
      }
      auto it = state->watched.find(events[i].data.u64);
      if (it == state->watched.end()) continue;  // unsubscribed by an earlier task of this turn
      auto task = it->second.task;               // kept alive while it runs, though it may unsubscribe itself
      (*task)(events[i].events);
    }
    if (!state->stopping) state->run_posted();
    if (!state->stopping) state->run_timers(now());
  }
  state->stopping = false;
}

void EpollLoop::stop() {
  state_->stopping = true;
  state_->ring();
}

}  // namespace gpulet
