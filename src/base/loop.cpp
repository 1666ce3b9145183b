#include "base/loop.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
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
    // Rounded up, else the loop would spin during the last millisecond before a timer.
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

Subscription EpollLoop::watch_descriptor(int fd, std::uint32_t events,
                                         std::function<void(std::uint32_t)> task) {
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

void EpollLoop::run_loop() {
  auto state = state_;
  while (!state->stopping) {
    std::array<epoll_event, 32> events;
    const int count = ::epoll_wait(state->epoll, events.data(), events.size(), state->timeout_ms(now()));
    for (int i = 0; i < count && !state->stopping; ++i) {
      const std::uint64_t id = events[i].data.u64;  // a copy: epoll_event is packed, so no reference may bind
      if (id == 0) {
        std::uint64_t rings;
        [[maybe_unused]] auto got = ::read(state->wake, &rings, sizeof rings);
        continue;
      }
      auto it = state->watched.find(id);
      if (it == state->watched.end()) continue;  // unsubscribed by an earlier task of this turn
      auto task = it->second.task;               // kept alive while it runs, though it may unsubscribe itself
      (*task)(events[i].events);
    }
    if (!state->stopping) state->run_posted();
    if (!state->stopping) state->run_timers(now());
  }
  state->stopping = false;
}

void EpollLoop::stop_loop() {
  state_->stopping = true;
  state_->ring();
}

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

namespace {

void* run_thread_body(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

// pthread_create and not std::thread, which throws when the kernel refuses.
Status start_detached_thread(std::string_view purpose, std::function<void()> body) {
  auto owned = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const int result = ::pthread_create(&thread, &attributes, run_thread_body, owned.get());
  ::pthread_attr_destroy(&attributes);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (result != 0)
    return fail(Code::kUnavailable, "no thread for " + std::string(purpose) + ": " + std::strerror(result));
  [[maybe_unused]] auto* handed_over = owned.release();
  return {};
}

}  // namespace gpulet
