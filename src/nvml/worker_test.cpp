#include "nvml/worker.h"

#include <gtest/gtest.h>

#include <atomic>

#include "nvml/test_loop_thread.h"

namespace gpulet::nvml {
namespace {

using namespace std::chrono_literals;

// A call that returns when the gate opens. Shared with the call, which may outlive the test.
class Gate {
 public:
  void open_gate() {
    {
      const std::lock_guard lock(state_->mutex);
      state_->is_open = true;
    }
    state_->changed.notify_all();
  }
  std::function<Result<int>()> wait_at_gate(int value) const {
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
    thread_.run_on_loop([&] { worker_.emplace(thread_.loop()); });
  }
  void TearDown() override {
    gate_.open_gate();
    thread_.run_on_loop([&] { worker_.reset(); });
  }
  std::optional<Result<int>> run_blocking(Call call, std::function<Result<int>()> work) {
    return thread_.await<Result<int>>([&, call = std::move(call), work = std::move(work)](auto done) {
      worker_->run_call<int>(call, work, done);
    });
  }
  void run_in_background(Call call, std::function<Result<int>()> work, Collected<Result<int>> answers = {}) {
    thread_.run_on_loop([&] {
      worker_->run_call<int>(std::move(call), std::move(work), [answers](Result<int> result) mutable {
        answers.push_value(std::move(result));
      });
    });
  }
  std::size_t abandoned() {
    std::size_t count = 0;
    thread_.run_on_loop([&] { count = worker_->abandoned(); });
    return count;
  }

  LoopThread thread_;
  std::optional<Worker> worker_;
  Gate gate_;
};

Result<int> one() { return 1; }

TEST_F(WorkerTest, RunsCallsInOrderOnOneThread) {
  Collected<Result<int>> answers;
  Collected<std::thread::id> threads;
  for (int i = 0; i < 20; ++i) {
    const auto work = [i, threads]() mutable -> Result<int> {
      threads.push_value(std::this_thread::get_id());
      return i;
    };
    run_in_background({"call", "gpu/0", 5s}, work, answers);
  }
  const auto all = answers.wait_for_values(20);
  ASSERT_EQ(all.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(*all[i], i);
  for (const auto id : threads.wait_for_values(20)) {
    EXPECT_EQ(id, threads.wait_for_values(20).front());
    EXPECT_NE(id, std::this_thread::get_id());
  }
}

TEST_F(WorkerTest, RunsCallsBehindAHangingOneOnAnotherThread) {
  constexpr int kCalls = 40;  // more than kMaxAssigned
  Collected<int> same_subject, others;
  const auto into = [](Collected<int> numbers) {
    return [numbers](Result<int> result) mutable { numbers.push_value(result.value_or(-1)); };
  };
  std::vector<int> expected_of_subject{0}, expected_others;
  thread_.run_on_loop([&] {
    worker_->run_call<int>({"reading GPU 0", "gpu/0", 10min}, gate_.wait_at_gate(0), into(same_subject));
    for (int i = 1; i < kCalls; ++i) {
      const bool same = i % 8 == 0;
      (same ? expected_of_subject : expected_others).push_back(i);
      worker_->run_call<int>(
          {"reading a GPU", same ? "gpu/0" : "gpu/1", 10min}, [i]() -> Result<int> { return i; },
          into(same ? same_subject : others));
    }
  });
  EXPECT_EQ(others.wait_for_values(expected_others.size()), expected_others);
  EXPECT_EQ(same_subject.size(), 0u);
  gate_.open_gate();
  EXPECT_EQ(same_subject.wait_for_values(expected_of_subject.size()), expected_of_subject);
}

TEST_F(WorkerTest, ReturnsErrors) {
  const auto result =
      run_blocking({"call", "", 5s}, []() -> Result<int> { return fail(Code::kDeviceLost, "gone"); });
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error().code(), Code::kDeviceLost);
}

TEST_F(WorkerTest, CountsCompletedCallsAndTheirTime) {
  const auto counted = [&] {
    std::pair<std::uint64_t, Duration> counts;
    thread_.run_on_loop([&] { counts = {worker_->completed_calls(), worker_->driver_time()}; });
    return counts;
  };
  EXPECT_EQ(counted(), (std::pair<std::uint64_t, Duration>(0, 0s)));
  Collected<Result<int>> answers;
  const auto began = std::chrono::steady_clock::now();
  run_in_background({"call", "gpu/0", 5s}, gate_.wait_at_gate(7), answers);
  EXPECT_EQ(counted().first, 0u);
  gate_.open_gate();
  ASSERT_EQ(answers.wait_for_values(1).size(), 1u);
  const auto [calls, time] = counted();
  EXPECT_EQ(calls, 1u);
  EXPECT_GT(time, Duration{});
  EXPECT_LE(time, std::chrono::steady_clock::now() - began);
}

TEST_F(WorkerTest, AbandonsAHangingCallAtItsDeadline) {
  Collected<Result<int>> hanging;
  run_in_background({"reading GPU 3", "gpu/3", 600ms}, gate_.wait_at_gate(3), hanging);
  // Another subject is served long before that deadline.
  const auto other = run_blocking({"reading GPU 4", "gpu/4", 5s}, one);
  ASSERT_TRUE(other && *other);
  EXPECT_EQ(hanging.size(), 0u);

  const auto ended = hanging.wait_for_values(1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(ended[0].error().message(), "reading GPU 3 has not returned from the driver in 600 ms");
  EXPECT_EQ(abandoned(), 1u);
}

TEST_F(WorkerTest, RejectsAHangingSubjectUntilItsCallReturns) {
  ASSERT_FALSE(*run_blocking({"reading GPU 3", "gpu/3", 50ms}, gate_.wait_at_gate(3)));
  std::atomic<int> calls{0};
  const auto probe = [&calls]() -> Result<int> { return ++calls; };
  const auto refused = run_blocking({"probing GPU 3", "gpu/3", 5s}, probe);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(refused->error().message(), "reading GPU 3 has not returned from the driver yet");
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(*run_blocking({"reading GPU 4", "gpu/4", 5s}, one));

  gate_.open_gate();
  // Its return is an event of the loop; until then the subject stays rejected.
  std::optional<Result<int>> again;
  const auto until = std::chrono::steady_clock::now() + kTestPatience;
  do {
    again = run_blocking({"probing GPU 3", "gpu/3", 5s}, probe);
  } while (again && !*again && std::chrono::steady_clock::now() < until);
  ASSERT_TRUE(again && *again);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(abandoned(), 0u);
}

TEST_F(WorkerTest, ReadmitsSubjectsWhileTheOldCallHangs) {
  ASSERT_FALSE(*run_blocking({"reading GPU 3", "gpu/3", 50ms}, gate_.wait_at_gate(3)));
  thread_.run_on_loop([&] { worker_->readmit_subjects(); });
  EXPECT_TRUE(*run_blocking({"reading GPU 3", "gpu/3", 5s}, one));
  EXPECT_EQ(abandoned(), 1u);
}

TEST_F(WorkerTest, SerializesCallsOfOneSubject) {
  Collected<Result<int>> first, second;
  run_in_background({"slow", "gpu/0", 10s}, gate_.wait_at_gate(1), first);
  std::atomic<bool> ran{false};
  run_in_background(
      {"next", "gpu/0", 10s},
      [&ran]() -> Result<int> {
        ran = true;
        return 2;
      },
      second);
  ASSERT_TRUE(*run_blocking({"other", "gpu/1", 5s}, one));  // so the first one was set aside
  EXPECT_FALSE(ran);
  gate_.open_gate();
  EXPECT_EQ(*first.wait_for_values(1).at(0), 1) << "a slow call still returns its result";
  EXPECT_EQ(*second.wait_for_values(1).at(0), 2);
}

TEST_F(WorkerTest, BoundsHangingCalls) {
  for (std::size_t i = 0; i < kMaxAbandoned; ++i) {
    ASSERT_EQ(run_blocking({"call", "gpu/" + std::to_string(i), 5ms}, gate_.wait_at_gate(0))->error().code(),
              Code::kDeadlineExceeded);
  }
  EXPECT_EQ(abandoned(), kMaxAbandoned);
  const auto refused = run_blocking({"one more", "gpu/99", 5s}, one);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->error().code(), Code::kUnavailable);
}

TEST_F(WorkerTest, NeverDestroysDriverObjectsOnTheLoop) {
  struct Held {
    Collected<std::thread::id>* gone;
    ~Held() { gone->push_value(std::this_thread::get_id()); }
  };
  Collected<std::thread::id> gone;
  const auto make = [&gone] { return std::shared_ptr<Held>(new Held{&gone}, delete_off_loop<Held>); };
  std::thread::id loop;
  thread_.run_on_loop([&] {
    loop = std::this_thread::get_id();
    make().reset();
    // Held by a call, by its result, and by a call that never runs.
    using Answer = Result<std::shared_ptr<Held>>;
    Collected<bool> begun;
    worker_->run_call<std::shared_ptr<Held>>(
        {"call", "gpu/0", 5s},
        [make, held = make(), begun, gate = gate_.wait_at_gate(0)]() mutable -> Answer {
          begun.push_value(true);
          static_cast<void>(gate());
          return make();
        },
        [](const Answer&) {});
    begun.wait_for_values(1);
    worker_->run_call<int>(
        {"call", "gpu/1", 5s}, [held = make()]() -> Result<int> { return 1; }, [](const Result<int>&) {});
    worker_.reset();
    gate_.open_gate();
  });
  const auto threads = gone.wait_for_values(4);
  ASSERT_EQ(threads.size(), 4u);
  for (const auto id : threads) EXPECT_NE(id, loop);
}

TEST_F(WorkerTest, CallsNothingAfterDestruction) {
  Collected<Result<int>> answers;
  run_in_background({"hangs", "gpu/0", 5s}, gate_.wait_at_gate(1), answers);
  run_in_background({"waits", "gpu/0", 5s}, one, answers);
  const auto before = std::chrono::steady_clock::now();
  thread_.run_on_loop([&] { worker_.reset(); });
  EXPECT_LT(std::chrono::steady_clock::now() - before, 1s) << "destruction does not block";
  gate_.open_gate();
  thread_.run_on_loop([] {});
  EXPECT_EQ(answers.size(), 0u);
}

// What a test repeats: it counts its runs, and returns true or hangs when told to.
class Repeated {
 public:
  std::function<bool()> work() {
    return [state = state_] {
      std::unique_lock lock(state->mutex);
      ++state->runs;
      state->changed.notify_all();
      state->changed.wait(lock, [&] { return !state->hangs; });
      return state->is_last;
    };
  }
  template <class Change>
  void change(Change change) {
    {
      const std::lock_guard lock(state_->mutex);
      change(*state_);
    }
    state_->changed.notify_all();
  }
  bool wait_for_runs(int runs) {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, 10s, [&] { return state_->runs >= runs; });
  }
  int runs() {
    const std::lock_guard lock(state_->mutex);
    return state_->runs;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int runs = 0;
    bool hangs = false, is_last = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

class RepeatedCallTest : public WorkerTest {
 protected:
  void TearDown() override {
    repeated_.change([](auto& state) { state.hangs = false; });
    thread_.run_on_loop([&] { subscription_.reset(); });
    WorkerTest::TearDown();
  }
  void repeat(Duration interval = 1ms) {
    thread_.run_on_loop([&] {
      subscription_ = worker_->repeat_call(
          "watching", interval, repeated_.work(), [ends = ends_](const Status& end) mutable {
            ends.push_value(end ? std::nullopt : std::optional(end.error().code()));
          });
    });
  }
  void hang() {
    repeated_.change([](auto& state) { state.hangs = true; });
    ASSERT_TRUE(repeated_.wait_for_runs(repeated_.runs() + 1));
  }

  using End = std::optional<Code>;
  Repeated repeated_;
  Collected<End> ends_;
  Subscription subscription_;
};

TEST_F(RepeatedCallTest, RunsBetweenOtherCallsUntilItReturnsTrue) {
  repeat();
  ASSERT_TRUE(repeated_.wait_for_runs(3));
  EXPECT_EQ(ends_.size(), 0u);
  EXPECT_EQ(run_blocking({"call", "", 5s}, one), 1);
  ASSERT_TRUE(repeated_.wait_for_runs(repeated_.runs() + 1));
  repeated_.change([](auto& state) { state.is_last = true; });
  EXPECT_EQ(ends_.wait_for_values(1), std::vector<End>{std::nullopt});
  const int runs = repeated_.runs();
  EXPECT_EQ(run_blocking({"call", "", 5s}, one), 1);
  EXPECT_EQ(repeated_.runs(), runs);
  thread_.run_on_loop([&] { EXPECT_EQ(worker_->completed_calls(), static_cast<std::uint64_t>(runs) + 2); });
}

TEST_F(RepeatedCallTest, ComesBeforeTheCallsThatWait) {
  Collected<Result<int>> answers;
  repeated_.change([](auto& state) { state.is_last = true; });
  run_in_background({"call", "", 5s}, gate_.wait_at_gate(0), answers);
  repeat(1ns);
  for (int i = 1; i < 4; ++i) {
    run_in_background(
        {"call", "", 5s},
        [i, repeated = repeated_]() mutable -> Result<int> { return repeated.runs() == 1 ? i : -1; },
        answers);
  }
  gate_.open_gate();
  const auto all = answers.wait_for_values(4);
  ASSERT_EQ(all.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(*all[i], i);
}

TEST_F(RepeatedCallTest, ItsSubscriptionEndsIt) {
  repeat();
  ASSERT_TRUE(repeated_.wait_for_runs(1));
  thread_.run_on_loop([&] { subscription_.reset(); });
  EXPECT_EQ(run_blocking({"call", "", 5s}, one), 1);
  const int runs = repeated_.runs();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run_blocking({"call", "", 5s}, one), 1);
  EXPECT_EQ(repeated_.runs(), runs);
  EXPECT_EQ(ends_.size(), 0u);
}

// Nothing else watches it.
TEST_F(RepeatedCallTest, AHangIsLeftByACallThatWaits) {
  repeat();
  hang();
  EXPECT_EQ(run_blocking({"call", "", 5s}, one), 1);
  EXPECT_EQ(ends_.wait_for_values(1), std::vector<End>{Code::kDeadlineExceeded});
  repeat();
  EXPECT_EQ(ends_.wait_for_values(2).back(), Code::kUnavailable) << "one thread at most is lost to it";
  repeated_.change([](auto& state) { state.hangs = false; });
  for (bool is_accepted = false; !is_accepted;) {  // once the thread has returned
    const auto ends = ends_.size();
    repeat();
    run_blocking({"call", "", 5s}, one);
    is_accepted = ends_.size() == ends;
  }
  const int runs = repeated_.runs();
  EXPECT_TRUE(repeated_.wait_for_runs(runs + 2));
}

TEST_F(RepeatedCallTest, OneThatIsEndedWhileItHangsCountsToo) {
  repeat();
  hang();
  repeat();
  EXPECT_EQ(ends_.wait_for_values(1), std::vector<End>{Code::kUnavailable});
  EXPECT_EQ(run_blocking({"call", "", 5s}, one), 1) << "on another thread";
  repeat();
  EXPECT_EQ(ends_.wait_for_values(2).back(), Code::kUnavailable);
}

TEST_F(RepeatedCallTest, AnotherSlowCallEndsIt) {
  repeat();
  run_in_background({"slow call", "gpu/0", 10min}, gate_.wait_at_gate(0));
  EXPECT_EQ(run_blocking({"call", "", 5s}, one), 1);
  EXPECT_EQ(ends_.wait_for_values(1), std::vector<End>{Code::kUnavailable});
  repeat();
  ASSERT_TRUE(repeated_.wait_for_runs(repeated_.runs() + 1)) << "on the other thread";
}

TEST_F(RepeatedCallTest, CallsNothingAfterDestruction) {
  repeat();
  hang();
  thread_.run_on_loop([&] { worker_.reset(); });
  repeated_.change([](auto& state) { state.is_last = true, state.hangs = false; });
  thread_.run_on_loop([&] { subscription_.reset(); });
  EXPECT_EQ(ends_.size(), 0u);
}

}  // namespace
}  // namespace gpulet::nvml
