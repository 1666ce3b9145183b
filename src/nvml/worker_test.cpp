#include "nvml/worker.h"

#include <gtest/gtest.h>

#include <atomic>

#include "nvml/test_loop_thread.h"
#include "nvml/thread.h"

namespace gpulet::nvml {
namespace {

using namespace std::chrono_literals;

// A call that comes back when it is told to. Shared with it, as it may outlive the test's own frame.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->is_open = true;
    }
    state_->changed.notify_all();
  }
  std::function<Result<int>()> call(int value) const {
    return [state = state_, value]() -> Result<int> {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->is_open; });
      return value;
    };
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class WorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    thread_.run([&] { worker_.emplace(thread_.loop()); });
  }
  void TearDown() override {
    gate_.open();
    thread_.run([&] { worker_.reset(); });
  }
  std::optional<Result<int>> run(Call call, std::function<Result<int>()> work) {
    return thread_.await<Result<int>>([&, call = std::move(call), work = std::move(work)](auto done) {
      worker_->run<int>(call, work, done);
    });
  }
  void start(Call call, std::function<Result<int>()> work, Gathered<Result<int>> answers = {}) {
    thread_.run([&] {
      worker_->run<int>(std::move(call), std::move(work),
                        [answers](Result<int> answer) mutable { answers.add(std::move(answer)); });
    });
  }
  std::size_t abandoned() {
    std::size_t count = 0;
    thread_.run([&] { count = worker_->abandoned(); });
    return count;
  }

  LoopThread thread_;
  std::optional<Worker> worker_;
  Gate gate_;
};

Result<int> one() { return 1; }

TEST_F(WorkerTest, RunsCallsInOrderOnOneThread) {
  Gathered<Result<int>> answers;
  Gathered<std::thread::id> threads;
  for (int i = 0; i < 20; ++i) {
    const auto work = [i, threads]() mutable -> Result<int> {
      threads.add(std::this_thread::get_id());
      return i;
    };
    start({"call", "gpu/0", 5s}, work, answers);
  }
  const auto all = answers.wait(20);
  ASSERT_EQ(all.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(*all[i], i);
  for (const auto id : threads.wait(20)) {
    EXPECT_EQ(id, threads.wait(20).front());
    EXPECT_NE(id, std::this_thread::get_id());
  }
}

TEST_F(WorkerTest, ErrorsComeBack) {
  const auto answer = run({"call", "", 5s}, []() -> Result<int> { return fail(Code::kDeviceLost, "gone"); });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->error().code(), Code::kDeviceLost);
}

TEST_F(WorkerTest, CountsCallsThatCameBackAndTheirTime) {
  const auto counted = [&] {
    std::pair<std::uint64_t, Duration> counts;
    thread_.run([&] { counts = {worker_->calls(), worker_->time()}; });
    return counts;
  };
  EXPECT_EQ(counted(), (std::pair<std::uint64_t, Duration>(0, 0s)));
  Gathered<Result<int>> answers;
  const auto began = std::chrono::steady_clock::now();
  start({"call", "gpu/0", 5s}, gate_.call(7), answers);
  EXPECT_EQ(counted().first, 0u);
  gate_.open();
  ASSERT_EQ(answers.wait(1).size(), 1u);
  const auto [calls, time] = counted();
  EXPECT_EQ(calls, 1u);
  EXPECT_GT(time, Duration{});
  EXPECT_LE(time, std::chrono::steady_clock::now() - began);
}

TEST_F(WorkerTest, AHangingCallEndsAtItsDeadlineAndHoldsNothingUp) {
  Gathered<Result<int>> hanging;
  start({"reading GPU 3", "gpu/3", 600ms}, gate_.call(3), hanging);
  // Another subject is served long before that deadline.
  const auto other = run({"reading GPU 4", "gpu/4", 5s}, one);
  ASSERT_TRUE(other && *other);
  EXPECT_EQ(hanging.size(), 0u);

  const auto ended = hanging.wait(1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(ended[0].error().message(), "reading GPU 3 has not returned from the driver in 600 ms");
  EXPECT_EQ(abandoned(), 1u);
}

TEST_F(WorkerTest, ASubjectThatHangsIsNotAskedAgainUntilItsCallReturns) {
  ASSERT_FALSE(*run({"reading GPU 3", "gpu/3", 50ms}, gate_.call(3)));
  std::atomic<int> asked{0};
  const auto ask = [&asked]() -> Result<int> { return ++asked; };
  const auto refused = run({"probing GPU 3", "gpu/3", 5s}, ask);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(refused->error().message(), "reading GPU 3 has not returned from the driver yet");
  EXPECT_EQ(asked, 0);
  EXPECT_TRUE(*run({"reading GPU 4", "gpu/4", 5s}, one));

  gate_.open();
  // Its return is an event of the loop; until then the refusal stays.
  std::optional<Result<int>> again;
  const auto until = std::chrono::steady_clock::now() + kTestPatience;
  do {
    again = run({"probing GPU 3", "gpu/3", 5s}, ask);
  } while (again && !*again && std::chrono::steady_clock::now() < until);
  ASSERT_TRUE(again && *again);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(abandoned(), 0u);
}

TEST_F(WorkerTest, ForgivenSubjectsAreAskedAgainWhileTheOldCallStillHangs) {
  ASSERT_FALSE(*run({"reading GPU 3", "gpu/3", 50ms}, gate_.call(3)));
  thread_.run([&] { worker_->forgive(); });
  EXPECT_TRUE(*run({"reading GPU 3", "gpu/3", 5s}, one));
  EXPECT_EQ(abandoned(), 1u);
}

TEST_F(WorkerTest, CallsOfOneSubjectNeverRunAtOnce) {
  Gathered<Result<int>> first, second;
  start({"slow", "gpu/0", 10s}, gate_.call(1), first);
  std::atomic<bool> ran{false};
  start({"next", "gpu/0", 10s}, [&ran]() -> Result<int> { ran = true; return 2; }, second);
  ASSERT_TRUE(*run({"other", "gpu/1", 5s}, one));  // so the first was set aside
  EXPECT_FALSE(ran);
  gate_.open();
  EXPECT_EQ(*first.wait(1).at(0), 1) << "slow is not too late";
  EXPECT_EQ(*second.wait(1).at(0), 2);
}

TEST_F(WorkerTest, HangingCallsAreBounded) {
  for (std::size_t i = 0; i < kMaxAbandoned; ++i) {
    ASSERT_EQ(run({"call", "gpu/" + std::to_string(i), 5ms}, gate_.call(0))->error().code(), Code::kDeadlineExceeded);
  }
  EXPECT_EQ(abandoned(), kMaxAbandoned);
  const auto refused = run({"one more", "gpu/99", 5s}, one);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error().code(), Code::kUnavailable);
}

TEST_F(WorkerTest, WhatCallsTheDriverAtItsEndNeverEndsOnTheLoop) {
  struct Held {
    Gathered<std::thread::id>* gone;
    ~Held() { gone->add(std::this_thread::get_id()); }
  };
  Gathered<std::thread::id> gone;
  const auto make = [&gone] { return std::shared_ptr<Held>(new Held{&gone}, dispose<Held>); };
  std::thread::id loop;
  thread_.run([&] {
    loop = std::this_thread::get_id();
    make().reset();
    // With a call, its answer, and a call that is never run.
    using Answer = Result<std::shared_ptr<Held>>;
    worker_->run<std::shared_ptr<Held>>({"call", "gpu/0", 5s}, [make, held = make()]() -> Answer { return make(); },
                                        [](const Answer&) {});
    worker_->run<int>({"call", "gpu/1", 5s}, [held = make()]() -> Result<int> { return 1; }, [](const Result<int>&) {});
    worker_.reset();
  });
  const auto threads = gone.wait(4);
  ASSERT_EQ(threads.size(), 4u);
  for (const auto id : threads) EXPECT_NE(id, loop);
}

TEST_F(WorkerTest, NothingIsCalledAfterItsEnd) {
  Gathered<Result<int>> answers;
  start({"hangs", "gpu/0", 5s}, gate_.call(1), answers);
  start({"waits", "gpu/0", 5s}, one, answers);
  const auto before = std::chrono::steady_clock::now();
  thread_.run([&] { worker_.reset(); });
  EXPECT_LT(std::chrono::steady_clock::now() - before, 1s) << "it waits for no call";
  gate_.open();
  thread_.run([] {});
  EXPECT_EQ(answers.size(), 0u);
}

}  // namespace
}  // namespace gpulet::nvml
