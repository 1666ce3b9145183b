#include "nvml/events.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "nvml/test_loop_thread.h"
#include "nvml/test_sim_root.h"

namespace gpulet::nvml {
namespace {

class EventsTest : public testing::Test {
 protected:
  void SetUp() override {
    session_ = *Session::open_session(root_.sim_root());
    set_ = *EventSet::create_event_set(session_);
    for (unsigned i = 0; i < 2; ++i)
      ASSERT_EQ(*set_->register_device(*session_->device(i), kEventXid), kEventXid);
    thread_.run_on_loop([&] {
      auto started =
          EventWaiter::start_waiting(thread_.loop(), std::move(set_),
                                     {.event = [this](const Event& event) { events_.push_value(event); },
                                      .started = [this] { works_.push_value(true); },
                                      .ended = [this](const Error& error) { ended_.push_value(error); }});
      ASSERT_TRUE(started);
      waiter_ = std::move(*started);
    });
  }
  void TearDown() override {
    thread_.run_on_loop([&] { waiter_.reset(); });
  }

  SimRoot root_{2};
  LoopThread thread_;
  std::shared_ptr<const Session> session_;
  std::shared_ptr<const EventSet> set_;
  Collected<Event> events_;
  Collected<bool> works_;
  Collected<Error> ended_;
  std::unique_ptr<EventWaiter> waiter_;
};

TEST_F(EventsTest, DeliversEventsOnTheLoopInOrder) {
  constexpr std::size_t kCount = 2 * kMaxPendingEvents;  // more than may be pending
  for (std::size_t i = 0; i < kCount; ++i) sim::post_event(*root_.edit_machine(), i % 2, sim::kEventXid, i);
  const auto events = events_.wait_for_values(kCount);
  ASSERT_EQ(events.size(), kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    EXPECT_EQ(events[i].data, i);
    EXPECT_EQ(events[i].device, *session_->device(i % 2));
  }
  EXPECT_EQ(works_.size(), 1u);
}

TEST_F(EventsTest, MergesEqualEventsInAStorm) {
  constexpr std::size_t kStorm = 500;
  thread_.run_on_loop([&] {  // the loop is busy meanwhile
    for (std::size_t i = 0; i < kStorm; ++i) sim::post_event(*root_.edit_machine(), 0, sim::kEventXid, 95);
    sim::post_event(*root_.edit_machine(), 1, sim::kEventXid, 79);
  });
  for (std::size_t count = 1; count <= kStorm; ++count) {
    const auto all = events_.wait_for_values(count);
    if (all.size() < count || std::ranges::count(all, 79u, &Event::data) != 0) break;
  }
  const auto all = events_.wait_for_values(0);
  EXPECT_EQ(std::ranges::count(all, 79u, &Event::data), 1);
  EXPECT_GE(std::ranges::count(all, 95u, &Event::data), 1);
  EXPECT_LT(all.size(), kStorm / 4);
  // The same event after delivery is a new one.
  sim::post_event(*root_.edit_machine(), 1, sim::kEventXid, 79);
  EXPECT_GT(events_.wait_for_values(all.size() + 1).size(), all.size());
}

TEST_F(EventsTest, ReportsAFailingWaitOnceAndReleasesTheDriver) {
  std::weak_ptr<const Session> session = session_;
  session_.reset();
  root_.edit_machine()->driver.event_wait_error = 999;
  const auto ended = ended_.wait_for_values(1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].code(), Code::kIo);
  EXPECT_TRUE(session.expired());
  root_.edit_machine()->driver.event_wait_error = 0;
  sim::post_event(*root_.edit_machine(), 0, sim::kEventXid, 79);
  thread_.run_on_loop([] {});
  EXPECT_EQ(ended_.size(), 1u);
  EXPECT_EQ(events_.size(), 0u) << "it has ended";
}

TEST_F(EventsTest, EndsAtAReload) {
  sim::unload_driver(*root_.edit_machine());
  const auto ended = ended_.wait_for_values(1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].code(), Code::kUnavailable);
}

TEST_F(EventsTest, DestructionNeitherBlocksNorCallsBack) {
  const auto before = std::chrono::steady_clock::now();
  thread_.run_on_loop([&] { waiter_.reset(); });
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(1));
  sim::post_event(*root_.edit_machine(), 0, sim::kEventXid, 79);
  thread_.run_on_loop([] {});
  EXPECT_EQ(events_.size(), 0u);
}

}  // namespace
}  // namespace gpulet::nvml
