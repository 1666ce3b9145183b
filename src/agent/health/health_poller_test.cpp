#include "agent/health/health_poller.h"

#include <gtest/gtest.h>

#include "agent/health/test_health.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kAsked("GPU-0"), kOther("GPU-1");

class HealthPollerTest : public testing::Test {
 protected:
  void SetUp() override {
    schedule();
    polls_.set_gpus(FakeHealthDriver::snapshot_of_gpus(2, true));
    loop_.advance(1ms);
    driver_.polled.clear();
  }
  void schedule(std::vector<DeviceUuid> suspects = {}, std::optional<Time> due = {}) {
    polls_.schedule_polls(policy_, false, suspects, due);
  }
  std::size_t polls_of(const DeviceUuid& gpu) { return driver_.polled[{gpu}]; }

  ManualLoop loop_;
  FakeHealthDriver driver_{loop_};
  std::size_t answers_ = 0;
  health::Policy policy_;
  HealthPoller polls_{loop_, driver_, [this](const auto&) { ++answers_; }};
};

TEST_F(HealthPollerTest, PollsAllImmediatelyThenAtTheirIntervals) {
  EXPECT_EQ(answers_, 2u) << "a new GPU is polled at once";
  loop_.advance(10s);
  EXPECT_EQ(driver_.asked[kAsked], 1u);
  EXPECT_EQ(driver_.asked[kOther], 1u);
  EXPECT_EQ(polls_of(kAsked), 0u);
  loop_.advance(49s);
  EXPECT_EQ(driver_.asked[kAsked], 5u);
  EXPECT_EQ(polls_of(kAsked), 0u);
  loop_.advance(1s);
  EXPECT_EQ(driver_.asked[kAsked], 5u) << "a poll is a question too";
  EXPECT_EQ(polls_of(kAsked), 1u);
  EXPECT_EQ(polls_of(kOther), 1u);
  EXPECT_TRUE(driver_.polled.contains({kAsked}));
  EXPECT_FALSE(driver_.polled.contains({kOther, 1, 0})) << "nothing is broken";
  EXPECT_EQ(loop_.pending_timers(), 1u) << "one for all GPUs";
}

TEST_F(HealthPollerTest, OnlyAWithdrawnGpuIsPolledWithItsMigDevices) {
  schedule({kOther});
  loop_.advance(5s);
  EXPECT_EQ(polls_of(kOther), 5u);
  EXPECT_EQ((driver_.polled[{kOther, 1, 0}]), 5u);
  EXPECT_EQ((driver_.polled[{kOther, 2, 0}]), 5u);
  EXPECT_EQ(polls_of(kAsked), 0u);
  EXPECT_EQ(answers_, 2u + 5u) << "a GPU's answers and those of its parts are one round";
  schedule();
  loop_.advance(4s);
  EXPECT_EQ(polls_of(kOther), 5u);
}

TEST_F(HealthPollerTest, AWithdrawnGpuIsPolledAtItsRecoveryTime) {
  policy_.unhealthy_poll_interval = 10s;
  schedule({kAsked}, loop_.now() + 3500ms);
  loop_.advance(3499ms);
  EXPECT_EQ(polls_of(kAsked), 0u);
  loop_.advance(1ms);
  EXPECT_EQ(polls_of(kAsked), 1u);
  // Reads that are not finished by then are checked in their turn.
  loop_.advance(9999ms);
  EXPECT_EQ(polls_of(kAsked), 1u);
  loop_.advance(1ms);
  EXPECT_EQ(polls_of(kAsked), 2u);
}

TEST_F(HealthPollerTest, AHangingGpuHasOneCallAndDelaysNoOther) {
  driver_.hangs[kAsked] = true;
  schedule({kAsked, kOther});
  loop_.advance(60s);
  EXPECT_EQ(polls_of(kAsked), 1u);
  EXPECT_EQ(polls_of(kOther), 60u);
  EXPECT_EQ(driver_.most_out, 1u);
  driver_.release_calls(kAsked);
  loop_.advance(10ms);
  EXPECT_EQ(polls_of(kAsked), 2u) << "its turn has long come";
}

TEST_F(HealthPollerTest, PollSoonPollsOnceImmediately) {
  polls_.poll_soon(kAsked);
  polls_.poll_soon(kAsked);
  polls_.poll_soon(DeviceUuid("GPU-unknown"));
  loop_.advance(1ms);
  EXPECT_EQ(polls_of(kAsked), 1u);
  // While a call is outstanding, it waits for the result.
  driver_.hangs[kAsked] = true;
  polls_.poll_soon(kAsked);
  loop_.advance(1ms);
  polls_.poll_soon(kAsked);
  loop_.advance(1s);
  EXPECT_EQ(polls_of(kAsked), 2u);
  driver_.release_calls(kAsked);
  loop_.advance(1ms);
  EXPECT_EQ(polls_of(kAsked), 3u);
}

TEST_F(HealthPollerTest, PausesWithoutADriverThenPollsAll) {
  polls_.pause_polling();
  EXPECT_EQ(loop_.pending_timers(), 0u);
  loop_.advance(5min);
  EXPECT_EQ(polls_of(kAsked), 0u);
  polls_.set_gpus(FakeHealthDriver::snapshot_of_gpus(2, true));
  loop_.advance(1ms);
  EXPECT_EQ(polls_of(kAsked), 1u);
  EXPECT_EQ(polls_of(kOther), 1u);
}

TEST_F(HealthPollerTest, ARemovedGpusResultIsDropped) {
  driver_.hangs[kOther] = true;
  polls_.poll_soon(kOther);
  loop_.advance(1ms);
  polls_.set_gpus(FakeHealthDriver::snapshot_of_gpus(1));
  driver_.release_calls(kOther);
  loop_.advance(10s);
  EXPECT_EQ(answers_, 2u + 1u) << "only the first GPU's";
  polls_.set_gpus({});
  EXPECT_EQ(loop_.pending_timers(), 0u) << "an empty node wakes for nothing";
}

TEST_F(HealthPollerTest, WithChecksDisabledOnlyLivenessIsPolled) {
  polls_.schedule_polls(policy_, true, {kAsked}, std::nullopt);
  polls_.poll_soon(kOther);
  loop_.advance(60s);
  EXPECT_TRUE(driver_.polled.empty());
  EXPECT_EQ(driver_.asked[kAsked], 60u);
  EXPECT_EQ(driver_.asked[kOther], 1u + 6u);
}

TEST_F(HealthPollerTest, ShorterIntervalAppliesImmediately) {
  policy_.liveness_interval = 1s;
  schedule();
  loop_.advance(3s);
  EXPECT_EQ(driver_.asked[kAsked], 3u);
}

TEST(HealthPoller, NoCallbackAfterDestruction) {
  ManualLoop loop;
  FakeHealthDriver driver(loop);
  bool told = false;
  auto polls = std::make_unique<HealthPoller>(loop, driver, [&](const auto&) { told = true; });
  polls->set_gpus(FakeHealthDriver::snapshot_of_gpus(1));
  loop.run_ready();
  driver.hangs[kAsked] = true;
  loop.advance(0ms);
  polls.reset();
  driver.release_calls(kAsked);
  loop.advance(1h);
  EXPECT_FALSE(told);
  EXPECT_EQ(loop.pending_timers(), 0u);
}

}  // namespace
}  // namespace gpulet::agent
