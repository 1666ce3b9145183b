#include "agent/health_care.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "agent/test_health.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;
using health::Answer;
using health::HandleReading;
using health::Scope;
using health::State;
using health::XidReport;

const DeviceUuid kFirst("GPU-0"), kSecond("GPU-1");

class HealthCareTest : public testing::Test {
 protected:
  void SetUp() override { loop_.advance(1h); }
  void start(inventory::Snapshot there = AnsweringDriver::node(2, true)) {
    there_ = std::move(there);
    HealthPorts ports{.loop = loop_,
                      .driver = driver_,
                      .memory = &memory_,
                      .changed =
                          [this](const auto& view, const HealthChanges& changes) {
                            ++told_;
                            view_ = view;
                            changes_.insert(changes_.end(), changes.begin(), changes.end());
                          },
                      .reread = [this] { ++rereads_; }};
    care_.emplace(std::move(ports), config_);
    care_->on_snapshot(there_);
    loop_.advance(1s);
  }
  void xid(const Scope& scope, std::uint64_t code) {
    care_->take({scope, loop_.now(), XidReport{.code = code}});
  }
  State state(const Scope& scope) const { return care_->view()->find(scope)->standing.state; }
  bool offered(const DeviceUuid& gpu) const { return care_->judge(there_).find(gpu)->health.healthy; }
  bool absent(const DeviceUuid& gpu, health::Source source) const {
    const auto& absences = care_->view()->find({gpu})->absences;
    return std::ranges::count(absences, source, &health::Absence::source) != 0;
  }

  ManualLoop loop_;
  AnsweringDriver driver_{loop_};
  MemoryInMemory memory_{loop_};
  config::Config config_;
  inventory::Snapshot there_;
  std::size_t told_ = 0, rereads_ = 0;
  health::ViewPtr view_;
  HealthChanges changes_;
  std::optional<HealthCare> care_;
};

TEST_F(HealthCareTest, TheFirstReadingIsToldAndThenWhatChanges) {
  HealthPorts ports{
      .loop = loop_, .driver = driver_, .memory = nullptr, .changed = nullptr, .reread = nullptr};
  EXPECT_EQ(HealthCare(std::move(ports), config_).view(), nullptr);
  start();
  EXPECT_GE(told_, 1u);
  EXPECT_EQ(state({kFirst}), State::kHealthy) << "its sources have spoken";
  EXPECT_TRUE(absent(kFirst, health::Source::kFabric));
  EXPECT_TRUE(absent(kFirst, health::Source::kProbe));
  const auto before = told_;
  EXPECT_FALSE(care_->on_snapshot(there_));
  loop_.advance(5min);
  EXPECT_EQ(told_, before) << "an idle node tells nothing";
}

TEST_F(HealthCareTest, AnXidIsToldWithinItsRoundAndWithoutTheDriver) {
  start();
  changes_.clear();
  const auto polled = driver_.polled;
  xid({kFirst}, 95);
  ASSERT_EQ(changes_.size(), 1u);
  EXPECT_EQ(changes_[0].device, Scope{kFirst});
  EXPECT_EQ(view_, care_->view());
  EXPECT_FALSE(offered(kFirst));
  EXPECT_TRUE(offered(kSecond));
  EXPECT_EQ(driver_.polled, polled);
}

TEST_F(HealthCareTest, AStormOfWhatIsKnownTellsNothingMore) {
  start();
  xid({kFirst}, 95);
  const auto told = told_, writes = memory_.writes;
  for (int i = 0; i < 10'000; ++i) {
    loop_.advance(100us);
    xid({kFirst}, 95);
  }
  EXPECT_EQ(told_, told);
  EXPECT_LE(memory_.writes, writes + 1);
  EXPECT_LE((driver_.polled[{kFirst}]), 4u) << "a second of it";
}

TEST_F(HealthCareTest, AGpuComesBackOnceTheDriversWordAndItsChecksHaveLastedAndNotEarlier) {
  start();
  driver_.action[kFirst] = 1;
  xid({kFirst}, 95);
  loop_.advance(5min);
  EXPECT_FALSE(offered(kFirst)) << "time alone heals nothing";
  driver_.action[kFirst] = 0;
  loop_.advance(30s);
  EXPECT_FALSE(offered(kFirst));
  EXPECT_EQ(state({kFirst}), State::kRecovering);
  loop_.advance(2s);
  EXPECT_TRUE(offered(kFirst));
  EXPECT_EQ(state({kFirst}), State::kHealthy);
}

// The kubelet has nothing to hear, but `gpulet health` shows it.
TEST_F(HealthCareTest, ACordonOfAGpuThatIsOutAlreadyIsPublished) {
  start();
  driver_.action[kFirst] = 1;
  xid({kFirst}, 95);
  const auto faults = view_->find({kFirst})->standing.faults.size();
  care_->take({{kFirst}, loop_.now(), health::OperatorWish{health::Wish::kCordon, "riser"}});
  EXPECT_EQ(view_->find({kFirst})->standing.faults.size(), faults + 1);
  EXPECT_EQ(state({kFirst}), State::kQuarantined);
}

TEST_F(HealthCareTest, WhenItIsDueIsPublished) {
  start();
  driver_.action[kFirst] = 1;
  xid({kFirst}, 95);
  EXPECT_FALSE(view_->find({kFirst})->standing.due);
  driver_.action[kFirst] = 0;
  loop_.advance(10s);
  EXPECT_TRUE(view_->find({kFirst})->standing.due);
}

TEST_F(HealthCareTest, AMigDevicesFaultIsItsOwn) {
  start();
  xid({kSecond, 1, 0}, 95);
  EXPECT_EQ(state({kSecond, 1, 0}), State::kQuarantined);
  EXPECT_EQ(state({kSecond, 2, 0}), State::kHealthy);
  EXPECT_EQ(state({kSecond}), State::kHealthy);
  loop_.advance(3s);
  EXPECT_GE((driver_.polled[{kSecond, 2, 0}]), 2u) << "who runs on it is asked of each";
}

TEST_F(HealthCareTest, OtherAnswersThanTheReadingsAskForAnother) {
  start();
  driver_.handle[kFirst] = HandleReading{Answer::kLost, "GPU is lost"};
  loop_.advance(10s);
  EXPECT_FALSE(offered(kFirst));
  EXPECT_EQ(rereads_, 1u);
  there_.gpus[0].unreadable = Error(Code::kDeviceLost, "GPU is lost");
  care_->on_snapshot(there_);
  loop_.advance(5min);
  EXPECT_EQ(rereads_, 1u) << "that is known";
  driver_.handle.clear();
  loop_.advance(1s);
  EXPECT_EQ(rereads_, 2u);
  there_.gpus[0].unreadable.reset();
  care_->on_snapshot(there_);
  loop_.advance(35s);
  EXPECT_TRUE(offered(kFirst));
  EXPECT_EQ(rereads_, 2u);
}

TEST_F(HealthCareTest, AHangingGpuDelaysNoOther) {
  start();
  driver_.action[kFirst] = driver_.action[kSecond] = 1;
  driver_.hangs[kFirst] = true;
  xid({kFirst}, 95);
  xid({kSecond}, 95);
  loop_.advance(3s);
  driver_.action[kSecond] = 0;
  loop_.advance(32s);
  EXPECT_TRUE(offered(kSecond));
  EXPECT_FALSE(offered(kFirst));
  EXPECT_EQ(driver_.most_out, 1u);
}

TEST_F(HealthCareTest, ARecoveryEventIsLookedAtAtOnce) {
  start();
  driver_.action[kFirst] = 2;
  care_->take({{kFirst}, loop_.now(), health::DriverNotice{health::Notice::kRecoveryChanged}});
  loop_.advance(1ms);
  EXPECT_FALSE(offered(kFirst));
}

TEST_F(HealthCareTest, AnOperatorsWishAndADoneResetAreEvidence) {
  start();
  care_->take({{kFirst}, loop_.now(), health::OperatorWish{health::Wish::kCordon, "a fan"}});
  EXPECT_FALSE(offered(kFirst));
  EXPECT_EQ(care_->view()->find({kFirst})->standing.reason, "cordoned: a fan");
  loop_.advance(1s);
  care_->take({{kFirst}, loop_.now(), health::OperatorWish{health::Wish::kUncordon, ""}});
  loop_.advance(2s);
  EXPECT_TRUE(offered(kFirst));
}

TEST_F(HealthCareTest, TheKernelsLogIsEvidenceAndItsAbsenceIsKnown) {
  start();
  care_->kernel_log("permission denied");
  EXPECT_TRUE(absent(kFirst, health::Source::kKernelLog));
  care_->kernel_log(std::nullopt);
  EXPECT_FALSE(absent(kFirst, health::Source::kKernelLog));
  care_->take(health::FaultLine(health::FallenOffLine{{0, 0x10, 0, 0}}));
  EXPECT_EQ(state({kFirst}), State::kLost);
  care_->take(health::FaultLine(health::FallenOffLine{{0, 0x99, 0, 0}}));
  EXPECT_TRUE(offered(kSecond));
}

TEST_F(HealthCareTest, AGpuThatComesLaterIsToldOfTheSourcesToo) {
  start(AnsweringDriver::node(1));
  care_->kernel_log("permission denied");
  there_ = AnsweringDriver::node(2);
  care_->on_snapshot(there_);
  loop_.advance(1s);
  EXPECT_TRUE(absent(kSecond, health::Source::kKernelLog));
  EXPECT_TRUE(absent(kSecond, health::Source::kProbe));
  EXPECT_EQ(driver_.polled.count({kSecond}), 1u);
}

TEST_F(HealthCareTest, WithoutADriverNothingIsAskedAndNothingIsForgotten) {
  start();
  driver_.action[kSecond] = 1;
  xid({kSecond}, 95);
  for (auto& gpu : there_.gpus) gpu.unreadable = Error(Code::kUnavailable, "the driver has gone");
  care_->on_snapshot(there_);
  care_->driver_away();
  loop_.advance(1ms);
  const auto polled = driver_.polled;
  loop_.advance(1h);
  EXPECT_EQ(driver_.polled, polled);
  EXPECT_FALSE(offered(kFirst));
  for (auto& gpu : there_.gpus) gpu.unreadable.reset();
  care_->on_snapshot(there_);
  loop_.advance(2s);
  EXPECT_TRUE(offered(kFirst)) << "a driver that was away says nothing of the GPU";
  EXPECT_FALSE(offered(kSecond));
}

TEST_F(HealthCareTest, ANewConfigCountsFromThenOn) {
  start();
  config_.gpulet.health.hold = 0s;
  config_.flags.disable_healthchecks = "95";
  care_->apply(config_);
  xid({kFirst}, 95);
  EXPECT_TRUE(offered(kFirst));
  xid({kFirst}, 62);
  EXPECT_FALSE(offered(kFirst));
  loop_.advance(4s);
  EXPECT_TRUE(offered(kFirst));
}

TEST_F(HealthCareTest, WhereNothingIsCheckedALostGpuIsWithdrawnAllTheSame) {
  config_.flags.disable_healthchecks = "all";
  start();
  EXPECT_EQ(state({kFirst}), State::kUnmonitored);
  xid({kFirst}, 95);
  EXPECT_TRUE(offered(kFirst));
  driver_.handle[kFirst] = HandleReading{Answer::kLost, "GPU is lost"};
  loop_.advance(10s);
  EXPECT_FALSE(offered(kFirst));
  EXPECT_TRUE(driver_.polled.empty());
}

TEST_F(HealthCareTest, FaultsOutliveTheProcess) {
  start();
  driver_.action[kFirst] = 1;
  xid({kFirst}, 95);
  care_.reset();
  changes_.clear();
  start();
  EXPECT_FALSE(offered(kFirst));
  EXPECT_TRUE(offered(kSecond));
  ASSERT_FALSE(changes_.empty());
  EXPECT_EQ(changes_[0].device, Scope{kFirst});
}

// Events are followed before the reading that they belong to is told.
TEST_F(HealthCareTest, WhatIsSaidBeforeTheFirstReadingIsToldWithIt) {
  HealthPorts ports{.loop = loop_,
                    .driver = driver_,
                    .memory = nullptr,
                    .changed = [this](const auto&, const HealthChanges& changes) { changes_ = changes; },
                    .reread = [] {}};
  care_.emplace(std::move(ports), config_);
  xid({kFirst}, 95);
  care_->take({{kFirst}, loop_.now(), health::SourceNotice{health::Source::kDriverEvents, std::nullopt}});
  EXPECT_TRUE(changes_.empty());
  care_->on_snapshot(AnsweringDriver::node(2));
  ASSERT_EQ(changes_.size(), 1u);
  EXPECT_EQ(changes_[0].after.state, State::kQuarantined);
}

TEST_F(HealthCareTest, AMemoryThatCannotBeReadIsNoReasonToStay) {
  memory_.failure = Error(Code::kInvalidArgument, "line 3 is no GPU");
  start();
  EXPECT_TRUE(offered(kFirst));
}

}  // namespace
}  // namespace gpulet::agent
