#include "base/loop.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <optional>
#include <set>
#include <thread>
#include <vector>
namespace gpulet {
namespace {

using namespace std::chrono_literals;

TEST(EpollLoop, RunsTasksPostedByOtherThreadsInOrder) {
  EpollLoop loop;
  std::vector<int> seen;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) loop.post([&, i] { seen.push_back(i); });
    loop.post([&] { loop.stop_loop(); });
  });
  loop.run_loop();
  other.join();
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST(EpollLoop, TimersFireInOrderUnlessCancelled) {
  EpollLoop loop;
  std::vector<int> seen;
  auto late = loop.after(20ms, [&] {
    seen.push_back(2);
    loop.stop_loop();
  });
  auto early = loop.after(1ms, [&] { seen.push_back(1); });
  auto never = loop.after(5ms, [&] { seen.push_back(-1); });
  never.reset();
  loop.run_loop();
  EXPECT_EQ(seen, (std::vector{1, 2}));
}

TEST(EpollLoop, WatchMayEndItselfInItsCallback) {
  EpollLoop loop;
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  int calls = 0;
  Subscription watch;
  watch = loop.watch_descriptor(pipe_fds[0], EPOLLIN, [&](std::uint32_t) {
    ++calls;
    watch.reset();
    loop.post([&] { loop.stop_loop(); });
  });
  ASSERT_EQ(::write(pipe_fds[1], "x", 1), 1);
  loop.run_loop();
  EXPECT_EQ(calls, 1);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

TEST(EpollLoop, SubscriptionMayOutliveTheLoop) {
  Subscription timer;
  {
    EpollLoop loop;
    timer = loop.after(1h, [] {});
  }
  timer.reset();
}

TEST(ManualLoop, TimersRunAtTheirOwnTime) {
  ManualLoop loop;
  std::vector<std::int64_t> times;
  const auto start = loop.now();
  auto record = [&] { times.push_back((loop.now() - start) / 1ms); };
  auto a = loop.after(30ms, record);
  auto b = loop.after(10ms, record);
  loop.advance(20ms);
  EXPECT_EQ(times, (std::vector<std::int64_t>{10}));
  loop.advance(20ms);
  EXPECT_EQ(times, (std::vector<std::int64_t>{10, 30}));
  EXPECT_EQ(loop.pending_timers(), 0u);
}

TEST(EpollLoop, RunsAgainAfterAStop) {
  EpollLoop loop;
  int ran = 0;
  for (int i = 1; i <= 3; ++i) {
    loop.post([&] {
      ++ran;
      loop.stop_loop();
    });
    loop.run_loop();
    EXPECT_EQ(ran, i);
  }
  loop.stop_loop();
  loop.post([&] { ++ran; });
  loop.run_loop();
  EXPECT_EQ(ran, 3);
}

}  // namespace

namespace {

using namespace std::chrono_literals;

constexpr BackoffLimits kLimits{100ms, 10s};

RC_GTEST_PROP(BackoffWaits, AreAboveHalfOfAStepThatDoublesUpToTheLongest, (std::uint64_t seed)) {
  Backoff backoff(kLimits, seed);
  Duration step = kLimits.first;
  for (int i = 0; i < 12; ++i) {
    const auto wait = backoff.next_delay();
    RC_ASSERT(wait >= step / 2);
    RC_ASSERT(wait <= step);
    step = std::min(step * 2, kLimits.max);
  }
  backoff.reset();
  RC_ASSERT(backoff.next_delay() <= kLimits.first);
}

RC_GTEST_PROP(BackoffWaits, OfNeighbouringSeedsFillTheirRangeEvenly, (std::uint64_t seed)) {
  // 1000 backoffs that start together: about 100 in each tenth of the range; 10 or 190 are 9.5 deviations
  // away.
  constexpr int kStarting = 1000, kTenths = 10;
  std::array<int, kTenths> counts{};
  for (int i = 0; i < kStarting; ++i) {
    const auto wait = Backoff(kLimits, seed + i).next_delay() - kLimits.first / 2;
    ++counts.at(std::min<std::size_t>(wait * kTenths / (kLimits.first / 2), kTenths - 1));
  }
  for (const int count : counts) {
    RC_ASSERT(count > 10);
    RC_ASSERT(count < 190);
  }
}

TEST(BackoffWaits, TinyStepsAreNotExceeded) {
  Backoff one({1ns, 1ns}, 1), none({0ns, 0ns}, 1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_LE(one.next_delay(), 1ns);
    EXPECT_EQ(none.next_delay(), 0ns);
  }
}

}  // namespace

namespace {

TEST(Lifetime, WatchIsTrueUntilTheObjectIsDestroyed) {
  std::optional<Lifetime> lifetime(std::in_place);
  const auto alive = lifetime->watch();
  const auto copy = alive;
  EXPECT_TRUE(alive);
  lifetime.reset();
  EXPECT_FALSE(alive);
  EXPECT_FALSE(copy);
}

TEST(Lifetime, CallbackOfADestroyedObjectDoesNothing) {
  struct Owner {
    int calls = 0;
    std::function<void()> make_callback() {
      return [this, alive = lifetime.watch()] {
        if (alive) ++calls;
      };
    }
    Lifetime lifetime;
  };
  auto owner = std::make_optional<Owner>();
  const auto callback = owner->make_callback();
  callback();
  EXPECT_EQ(owner->calls, 1);
  owner.reset();
  callback();
}

TEST(Lifetime, WatchesAreIndependentPerObject) {
  std::optional<Lifetime> first(std::in_place);
  const Lifetime second;
  const auto alive = second.watch();
  first.reset();
  EXPECT_TRUE(alive);
}

}  // namespace

}  // namespace gpulet
