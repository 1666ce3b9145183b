// Whom the results of a round are held against, and what a controller keeps of an earlier one.
#include <algorithm>

#include "agent/preflight/preflight_controller.h"
#include "agent/preflight/test_preflight.h"

namespace gpulet::agent {
namespace {

using health::FaultClass;
using preflight::Outcome;
using preflight::RunResult;
using repair::test_uuid;

using PreflightRoundsTest = PreflightControllerTest;

RunResult peer_report(const DeviceUuid& gpu, const DeviceUuid& peer, Outcome outcome) {
  return {.ended = RunResult::Ended::kReported,
          .output = preflight::format_report({.gpu = gpu.str(),
                                              .checks = {{.outcome = Outcome::kPassed, .message = "ok"},
                                                         {.check = preflight::Check::kPeerCopy,
                                                          .outcome = outcome,
                                                          .message = "a word is wrong",
                                                          .peer = peer.str()}}}),
          .error = {}};
}

// All copies with the faulty GPU fail, from either side.
TEST_F(PreflightRoundsTest, AFaultyPeerWithdrawsNoOther) {
  start();
  const auto faulty = test_uuid(2);
  unsigned rounds = 0;
  while (!running_.empty() && ++rounds < 20) {
    const auto gpu = running_.begin()->first;
    ASSERT_EQ(peers_[gpu].size(), 1u);
    const auto peer = peers_[gpu].front();
    const auto outcome = gpu == faulty || peer == faulty ? Outcome::kFailed : Outcome::kPassed;
    end_run(snapshot_.find(gpu)->index, peer_report(gpu, peer, outcome));
  }
  EXPECT_TRUE(withdrawn().empty());
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) EXPECT_EQ(readings_[test_uuid(gpu)].passed, gpu != 2) << gpu;
  EXPECT_EQ(runs_, kGpus + 2) << "the faulty one, and the one whose peer it was, again";
}

TEST_F(PreflightRoundsTest, OfTwoGpusNeitherIsWithdrawnByTheirCopies) {
  pods_ = mig::PodsByDevice{{DeviceId("GPU-2"), "default/a"}, {DeviceId("GPU-3"), "default/b"}};
  start();
  end_run(0, peer_report(test_uuid(0), test_uuid(1), Outcome::kFailed));
  end_run(1, peer_report(test_uuid(1), test_uuid(0), Outcome::kSlow));
  EXPECT_EQ(runs_, 2u);
  for (unsigned gpu : {0u, 1u}) {
    EXPECT_TRUE(readings_[test_uuid(gpu)].passed);
    EXPECT_EQ(readings_[test_uuid(gpu)].slow, "");
    EXPECT_NE(shown(gpu).find("passed: peer-copy with GPU-"), std::string::npos) << shown(gpu);
    EXPECT_NE(shown(gpu).find("the fault of one of the two"), std::string::npos) << shown(gpu);
  }
}

// A second run because of slow copies with the host has another peer, whose fault is new.
TEST_F(PreflightRoundsTest, AFaultOfTheSecondPeerAloneDoesNotCount) {
  start();
  end_run(0, report_of(test_uuid(0), Outcome::kSlow, "9 GB/s"));
  while (running_.size() != 1 || !running_.contains(test_uuid(0)))
    pass(snapshot_.find(running_.begin()->first)->index);
  end_run(0, peer_report(test_uuid(0), peers_[test_uuid(0)].front(), Outcome::kFailed));
  EXPECT_TRUE(readings_[test_uuid(0)].passed);
}

TEST_F(PreflightRoundsTest, WhenAllHangNoneIsFaulty) {
  const RunResult hung{.ended = RunResult::Ended::kTimedOut, .output = {}, .error = "no end within 30s"};
  start();
  for (unsigned gpu = 0; gpu < kGpus; ++gpu) end_run(gpu, hung);
  EXPECT_TRUE(readings_.empty());
  EXPECT_TRUE(running_.empty());
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_NE(shown(3).find("unknown: no GPU's checks ended within 30s"), std::string::npos) << shown(3);
  const auto events = reporter_.reported_texts();
  EXPECT_NE(std::ranges::find_if(events,
                                 [](const auto& text) {
                                   return text.find("all 4 GPUs count as unknown") != std::string::npos;
                                 }),
            events.end());
}

TEST_F(PreflightRoundsTest, ARunThatEndedTheAgentIsNotRepeated) {
  holds_saves_ = true;
  start();
  EXPECT_EQ(saved_.started.size(), 2u);
  EXPECT_TRUE(running_.empty()) << "not before it is recorded";
  for (auto& done : std::exchange(held_saves_, {})) done();
  EXPECT_EQ(running_.size(), 2u);
  auto crashed = saved_;
  EXPECT_TRUE(controller_->record_at_end().started.empty()) << "an orderly end is none of the runs";
  holds_saves_ = false;
  running_.clear();
  start(crashed);
  EXPECT_EQ(shown(0), "unknown: the agent ended during its preflight");
  EXPECT_EQ(shown(1), "unknown: the agent ended during its preflight");
  EXPECT_EQ(running_.size(), 2u);
  EXPECT_TRUE(running_.contains(test_uuid(2)));
  EXPECT_FALSE(withdrawn().contains(test_uuid(0)));
  pass(2);
  pass(3);
  EXPECT_TRUE(saved_.started.empty());
  EXPECT_EQ(saved_.gpus.at(test_uuid(0)), preflight::Verdict::Kind::kUnknown);
  running_.clear();
  start(crashed, "boot-2");
  EXPECT_EQ(running_.size(), 2u) << "another boot";
  EXPECT_TRUE(running_.contains(test_uuid(0)));
}

// A run whose recording ends after it was stopped does not begin.
TEST_F(PreflightRoundsTest, AStoppedRunDoesNotBegin) {
  holds_saves_ = true;
  start();
  paused_ = "for the driver";
  update();
  for (auto& done : std::exchange(held_saves_, {})) done();
  EXPECT_TRUE(running_.empty());
  EXPECT_TRUE(stopped_.empty());
}

TEST_F(PreflightRoundsTest, AReturnThatCouldNotBeCheckedWaitsAgainOnceItCan) {
  for (const auto outcome : {Outcome::kPassed, Outcome::kFailed}) {
    view_ = repair::test_view(kGpus, {});
    start(saved_);
    pass_all();
    processes_ = PreflightPorts::Holders{{test_uuid(2), {{812, "process 812"}}}};
    loop_.advance(std::chrono::seconds(1));
    set_fault(2, FaultClass::kXidReset, loop_.now());
    update();
    EXPECT_EQ(absent(2), "the preflight did not run: held by process 812");
    processes_ = PreflightPorts::Holders();
    loop_.advance(std::chrono::seconds(1));
    set_fault(2, FaultClass::kXidReset, loop_.now());
    update();
    ASSERT_TRUE(running_.contains(test_uuid(2)));
    end_run(2, report_of(test_uuid(2), outcome, "a word is wrong"));
    EXPECT_EQ(absent(2), "");
  }
}

TEST_F(PreflightRoundsTest, AFailedOneStaysFailedUntilItIsCheckedAgain) {
  start();
  end_run(0, report_of(test_uuid(0), Outcome::kFailed, "a word is wrong"));
  pass_all();
  set_fault(0, FaultClass::kProbeFailed, std::nullopt);
  processes_ = PreflightPorts::Holders{{test_uuid(0), {{812, "process 812"}}}};
  loop_.advance(policy_.retry_interval + std::chrono::seconds(1));
  update();
  EXPECT_EQ(runs_, kGpus);
  EXPECT_EQ(shown(0), "failed: memory: a word is wrong");
  EXPECT_EQ(saved_.gpus.at(test_uuid(0)), preflight::Verdict::Kind::kFailed);
  EXPECT_EQ(absent(0), "the preflight did not run: held by process 812");
}

TEST_F(PreflightRoundsTest, AChangeOfMigHoldsItsGpuOnly) {
  paused_gpus_[test_uuid(1)] = "for the change of its MIG to end";
  start();
  EXPECT_FALSE(running_.contains(test_uuid(1)));
  EXPECT_EQ(shown(1), "waiting: for the change of its MIG to end");
  pass_all();
  EXPECT_EQ(withdrawn().size(), 1u);
  paused_gpus_.clear();
  loop_.advance(kPreflightPoll + kMigSettleTime);
  pass_all();
  EXPECT_TRUE(withdrawn().empty());
}

TEST_F(PreflightRoundsTest, AnExcludedGpuIsNotCheckedAndKeepsItsReason) {
  snapshot_.gpus[3].excluded = "is excluded by the rule at x.yaml:3:5";
  start();
  EXPECT_EQ(withdrawn().size(), kGpus - 1);
  EXPECT_FALSE(withdrawn().contains(test_uuid(3)));
}

}  // namespace
}  // namespace gpulet::agent
