#include "agent/health_polls.h"

#include <gtest/gtest.h>

#include "agent/test_health.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

const DeviceUuid kAsked("GPU-0"), kOther("GPU-1");

class HealthPollsTest : public testing::Test {
 protected:
  void SetUp() override {
    plan();
    polls_.follow(AnsweringDriver::node(2, true));
    loop_.advance(1ms);
    driver_.polled.clear();
  }
  void plan(std::vector<DeviceUuid> suspects = {}, std::optional<Time> due = {}) {
    polls_.plan(policy_, false, suspects, due);
  }
  std::size_t polled(const DeviceUuid& gpu) { return driver_.polled[{gpu}]; }

  ManualLoop loop_;
  AnsweringDriver driver_{loop_};
  std::size_t answers_ = 0;
  health::Policy policy_;
  HealthPolls polls_{loop_, driver_, [this](const auto&) { ++answers_; }};
};

TEST_F(HealthPollsTest, EveryoneIsPolledAtOnceThenAskedAndPolledAtTheirIntervals) {
  EXPECT_EQ(answers_, 2u) << "a new GPU is polled at once";
  loop_.advance(10s);
  EXPECT_EQ(driver_.asked[kAsked], 1u);
  EXPECT_EQ(driver_.asked[kOther], 1u);
  EXPECT_EQ(polled(kAsked), 0u);
  loop_.advance(49s);
  EXPECT_EQ(driver_.asked[kAsked], 5u);
  EXPECT_EQ(polled(kAsked), 0u);
  loop_.advance(1s);
  EXPECT_EQ(driver_.asked[kAsked], 5u) << "a poll is a question too";
  EXPECT_EQ(polled(kAsked), 1u);
  EXPECT_EQ(polled(kOther), 1u);
  EXPECT_TRUE(driver_.polled.contains({kAsked}));
  EXPECT_FALSE(driver_.polled.contains({kOther, 1, 0})) << "nothing is broken";
  EXPECT_EQ(loop_.pending_timers(), 1u) << "one for all GPUs";
}

TEST_F(HealthPollsTest, ASuspectIsPolledWithItsMigDevicesAndTheOthersAreNot) {
  plan({kOther});
  loop_.advance(5s);
  EXPECT_EQ(polled(kOther), 5u);
  EXPECT_EQ((driver_.polled[{kOther, 1, 0}]), 5u);
  EXPECT_EQ((driver_.polled[{kOther, 2, 0}]), 5u);
  EXPECT_EQ(polled(kAsked), 0u);
  EXPECT_EQ(answers_, 2u + 5u) << "a GPU's answers and those of its parts are one round";
  plan();
  loop_.advance(4s);
  EXPECT_EQ(polled(kOther), 5u);
}

TEST_F(HealthPollsTest, ASuspectIsPolledWhenItCouldComeBack) {
  policy_.suspect_interval = 10s;
  plan({kAsked}, loop_.now() + 3500ms);
  loop_.advance(3499ms);
  EXPECT_EQ(polled(kAsked), 0u);
  loop_.advance(1ms);
  EXPECT_EQ(polled(kAsked), 1u);
  // What is not over then is looked at when its turn comes.
  loop_.advance(9999ms);
  EXPECT_EQ(polled(kAsked), 1u);
  loop_.advance(1ms);
  EXPECT_EQ(polled(kAsked), 2u);
}

TEST_F(HealthPollsTest, AGpuThatHangsIsNotAskedTwiceAndHoldsNoOtherUp) {
  driver_.hangs[kAsked] = true;
  plan({kAsked, kOther});
  loop_.advance(60s);
  EXPECT_EQ(polled(kAsked), 1u);
  EXPECT_EQ(polled(kOther), 60u);
  EXPECT_EQ(driver_.most_out, 1u);
  driver_.release(kAsked);
  loop_.advance(10ms);
  EXPECT_EQ(polled(kAsked), 2u) << "its turn has long come";
}

TEST_F(HealthPollsTest, PollSoonIsSoonAndOnce) {
  polls_.poll_soon(kAsked);
  polls_.poll_soon(kAsked);
  polls_.poll_soon(DeviceUuid("GPU-unknown"));
  loop_.advance(1ms);
  EXPECT_EQ(polled(kAsked), 1u);
  // While an answer is out it waits for that.
  driver_.hangs[kAsked] = true;
  polls_.poll_soon(kAsked);
  loop_.advance(1ms);
  polls_.poll_soon(kAsked);
  loop_.advance(1s);
  EXPECT_EQ(polled(kAsked), 2u);
  driver_.release(kAsked);
  loop_.advance(1ms);
  EXPECT_EQ(polled(kAsked), 3u);
}

TEST_F(HealthPollsTest, WithoutADriverNobodyIsAskedAndAfterwardsEveryoneIs) {
  polls_.pause();
  EXPECT_EQ(loop_.pending_timers(), 0u);
  loop_.advance(5min);
  EXPECT_EQ(polled(kAsked), 0u);
  polls_.follow(AnsweringDriver::node(2, true));
  loop_.advance(1ms);
  EXPECT_EQ(polled(kAsked), 1u);
  EXPECT_EQ(polled(kOther), 1u);
}

TEST_F(HealthPollsTest, AGpuThatIsGoneIsForgottenAndItsAnswerDropped) {
  driver_.hangs[kOther] = true;
  polls_.poll_soon(kOther);
  loop_.advance(1ms);
  polls_.follow(AnsweringDriver::node(1));
  driver_.release(kOther);
  loop_.advance(10s);
  EXPECT_EQ(answers_, 2u + 1u) << "only the first GPU's";
  polls_.follow({});
  EXPECT_EQ(loop_.pending_timers(), 0u) << "an empty node wakes for nothing";
}

TEST_F(HealthPollsTest, WhereNothingIsCheckedOnlyTheHandleIsAsked) {
  polls_.plan(policy_, true, {kAsked}, std::nullopt);
  polls_.poll_soon(kOther);
  loop_.advance(60s);
  EXPECT_TRUE(driver_.polled.empty());
  EXPECT_EQ(driver_.asked[kAsked], 60u);
  EXPECT_EQ(driver_.asked[kOther], 1u + 6u);
}

TEST_F(HealthPollsTest, AShorterIntervalCountsAtOnce) {
  policy_.alive_interval = 1s;
  plan();
  loop_.advance(3s);
  EXPECT_EQ(driver_.asked[kAsked], 3u);
}

TEST(HealthPolls, NothingIsToldAfterItsEnd) {
  ManualLoop loop;
  AnsweringDriver driver(loop);
  bool told = false;
  auto polls = std::make_unique<HealthPolls>(loop, driver, [&](const auto&) { told = true; });
  polls->follow(AnsweringDriver::node(1));
  loop.run_ready();
  driver.hangs[kAsked] = true;
  loop.advance(0ms);
  polls.reset();
  driver.release(kAsked);
  loop.advance(1h);
  EXPECT_FALSE(told);
  EXPECT_EQ(loop.pending_timers(), 0u);
}

}  // namespace
}  // namespace gpulet::agent
