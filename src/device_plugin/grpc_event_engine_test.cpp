#include "device_plugin/grpc_event_engine.h"

#include <gtest/gtest.h>

#include <grpc/event_engine/event_engine.h>

#include <future>
#include <mutex>
#include <string>
#include <thread>

namespace gpulet::device_plugin {
namespace {

using namespace std::chrono_literals;
using grpc_event_engine::experimental::EventEngine;

std::shared_ptr<EventEngine> make_engine() {
  use_sleeping_event_engine();
  return grpc_event_engine::experimental::CreateEventEngine();
}

class CountingClosure final : public EventEngine::Closure {
 public:
  void Run() override { ran_.set_value(); }
  std::future<void> ran() { return ran_.get_future(); }

 private:
  std::promise<void> ran_;
};

TEST(GrpcEventEngineTest, RunsClosuresInTheOrderOfTheirTimes) {
  const auto engine = make_engine();
  std::mutex mutex;
  std::string order;
  std::promise<void> last;
  const auto note = [&](char name) {
    const std::lock_guard lock(mutex);
    order += name;
  };
  std::promise<void> all_set;
  // Holds the thread until all are set.
  engine->Run([set = all_set.get_future().share()] { set.wait(); });
  engine->RunAfter(40ms, [&] {
    note('c');
    last.set_value();
  });
  engine->RunAfter(20ms, [&] { note('b'); });
  engine->Run([&] { note('a'); });
  all_set.set_value();
  last.get_future().wait();
  EXPECT_EQ(order, "abc");
}

TEST(GrpcEventEngineTest, RunsClosuresOfBothKindsOnItsThread) {
  const auto engine = make_engine();
  EXPECT_FALSE(engine->IsWorkerThread());
  std::promise<bool> on_thread;
  engine->Run([&] { on_thread.set_value(engine->IsWorkerThread()); });
  EXPECT_TRUE(on_thread.get_future().get());
  CountingClosure now, later;
  engine->Run(&now);
  engine->RunAfter(1ms, &later);
  now.ran().wait();
  later.ran().wait();
}

TEST(GrpcEventEngineTest, CancelsWhatHasNotBegun) {
  const auto engine = make_engine();
  const auto held = std::make_shared<int>();
  const auto waiting = engine->RunAfter(1h, [held] { ADD_FAILURE() << "was cancelled"; });
  EXPECT_EQ(held.use_count(), 2);
  EXPECT_TRUE(engine->Cancel(waiting));
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(engine->Cancel(waiting));

  std::promise<void> begun;
  const auto over = engine->RunAfter(0ms, [&] { begun.set_value(); });
  begun.get_future().wait();
  EXPECT_FALSE(engine->Cancel(over));
}

TEST(GrpcEventEngineTest, MayBeDestroyedByItsOwnClosure) {
  auto engine = make_engine();
  std::weak_ptr<EventEngine> watched = engine;
  std::promise<void> handed_over, ran;
  auto* raw = engine.get();
  raw->Run([held = std::move(engine), over = handed_over.get_future().share(), &ran] {
    over.wait();
    ran.set_value();
  });
  handed_over.set_value();
  ran.get_future().wait();
  while (!watched.expired()) std::this_thread::yield();
}

TEST(GrpcEventEngineTest, DropsWhatWaitsAtItsEnd) {
  auto engine = make_engine();
  const auto held = std::make_shared<int>();
  engine->RunAfter(1h, [held] { ADD_FAILURE() << "ran after the end"; });
  engine.reset();
  while (held.use_count() != 1) std::this_thread::yield();
}

// It has timers only.
TEST(GrpcEventEngineTest, RefusesSocketsAndNames) {
  const auto engine = make_engine();
  EXPECT_EQ(engine->GetDNSResolver({}), nullptr);
  EXPECT_FALSE(engine->CancelConnect({{1, 1}}));
}

}  // namespace
}  // namespace gpulet::device_plugin
