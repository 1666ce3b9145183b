#include "base/loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "base/manual_loop.h"

namespace gpulet {
namespace {

using namespace std::chrono_literals;

TEST(EpollLoop, RunsPostsOfOtherThreadsInOrder) {
  EpollLoop loop;
  std::vector<int> seen;
  std::thread other([&] {
    for (int i = 0; i < 1000; ++i) loop.post([&, i] { seen.push_back(i); });
    loop.post([&] { loop.stop(); });
  });
  loop.run();
  other.join();
  ASSERT_EQ(seen.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
}

TEST(EpollLoop, TimersFireInOrderAndACancelledOneNever) {
  EpollLoop loop;
  std::vector<int> seen;
  auto late = loop.after(20ms, [&] { seen.push_back(2); loop.stop(); });
  auto early = loop.after(1ms, [&] { seen.push_back(1); });
  auto never = loop.after(5ms, [&] { seen.push_back(-1); });
  never.reset();
  loop.run();
  EXPECT_EQ(seen, (std::vector{1, 2}));
}

TEST(EpollLoop, AWatchMayEndItselfFromItsOwnCallback) {
  EpollLoop loop;
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  int calls = 0;
  Subscription watch;
  watch = loop.watch(pipe_fds[0], EPOLLIN, [&](std::uint32_t) {
    ++calls;
    watch.reset();
    loop.post([&] { loop.stop(); });
  });
  ASSERT_EQ(::write(pipe_fds[1], "x", 1), 1);
  loop.run();
  EXPECT_EQ(calls, 1);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
}

TEST(EpollLoop, ASubscriptionMayOutliveTheLoop) {
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
      loop.stop();
    });
    loop.run();
    EXPECT_EQ(ran, i);
  }
  loop.stop();
  loop.post([&] { ++ran; });
  loop.run();
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace gpulet
