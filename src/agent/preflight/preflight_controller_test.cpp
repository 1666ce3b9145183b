#include "agent/preflight/preflight_controller.h"

#include "agent/preflight/test_preflight.h"

namespace gpulet::agent {
namespace {

using health::FaultClass;
using preflight::Outcome;
using preflight::RunResult;
using repair::test_uuid;

TEST_F(PreflightControllerTest, ChecksEachGpuOncePerBoot) {
  controller_.emplace(make_ports("boot-1"), preflight::BootRecord{});
  EXPECT_EQ(withdrawn().size(), kGpus) << "before anything is known of them";
  EXPECT_EQ(withdrawn().begin()->second, "waits for its preflight");
  update();
  EXPECT_EQ(running_.size(), 2u) << "parallel";
  EXPECT_EQ(withdrawn().size(), kGpus);
  EXPECT_EQ(shown(3), "waiting");
  pass(0);
  EXPECT_EQ(withdrawn().size(), kGpus) << "it may be a peer of the others";
  pass_all();
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_EQ(shown(3), "passed");
  EXPECT_EQ(readings_.size(), kGpus);
  EXPECT_TRUE(readings_[test_uuid(3)].passed);
  EXPECT_EQ(saved_.gpus.size(), kGpus);
  EXPECT_EQ(saved_.boot_id, "boot-1");
  EXPECT_EQ(reporter_.reported_texts().back(), "GpuPreflight: GPUs checked: 4 passed");
  update();
  start(saved_);
  EXPECT_EQ(runs_, kGpus) << "not with the agent's restart";
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_EQ(shown(3), "passed") << "its result stays known";
  start(saved_, "boot-2");
  EXPECT_EQ(runs_, kGpus + 2) << "with the next boot";
  start(saved_, "");
  EXPECT_EQ(withdrawn().size(), kGpus) << "a boot without a name is none that is recorded";
}

TEST_F(PreflightControllerTest, ARecordOfAFaultIsNoPass) {
  using Kind = preflight::Verdict::Kind;
  start({"boot-1",
         {{test_uuid(0), Kind::kPassed},
          {test_uuid(1), Kind::kUnknown},
          {test_uuid(2), Kind::kFailed},
          {test_uuid(3), Kind::kSlow}}});
  EXPECT_EQ(runs_, 2u);
  EXPECT_TRUE(running_.contains(test_uuid(2)));
  EXPECT_TRUE(running_.contains(test_uuid(3)));
}

TEST_F(PreflightControllerTest, DoesNothingUnlessEnabled) {
  policy_ = {};
  start();
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_EQ(pod_reads_, 0u);
  policy_.enabled = true;
  policy_.at_boot = false;
  update();
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_EQ(pod_reads_, 0u);
}

TEST_F(PreflightControllerTest, WhatIsHeldOrUnfitIsOffered) {
  pods_ = mig::PodsByDevice{{DeviceId("GPU-0::1"), "default/trainer"}};
  processes_ = PreflightPorts::Holders{{test_uuid(1), {{812, "process 812 (python)"}}}};
  unfit_[test_uuid(2)] = "it is in MIG mode";
  start();
  EXPECT_EQ(runs_, 1u);
  EXPECT_TRUE(running_.contains(test_uuid(3)));
  EXPECT_EQ(withdrawn().size(), 1u);
  pass(3);
  EXPECT_EQ(shown(0), "unknown: held by Pod default/trainer");
  EXPECT_EQ(shown(1), "unknown: held by process 812 (python)");
  EXPECT_EQ(shown(2), "unknown: it is in MIG mode");
  EXPECT_EQ(saved_.gpus.size(), kGpus) << "they were offered: not due again in this boot";
  EXPECT_EQ(readings_.size(), 1u);
  update();
  EXPECT_EQ(absent(0), "") << "a return after a later fault waits for a preflight";
}

TEST_F(PreflightControllerTest, WithoutTheKubeletOrTheDriverAllAreOffered) {
  pods_ = fail(Code::kUnavailable, "no kubelet");
  start();
  EXPECT_EQ(withdrawn().size(), kGpus) << "without a kubelet none is offered anyway";
  loop_.advance(kPreflightPodsLimit + 2 * kPreflightPoll);
  EXPECT_EQ(runs_, 0u);
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_NE(shown(1).find("unknown: cannot list the Pods that hold it: no kubelet"), std::string::npos);
  pods_ = mig::PodsByDevice();
  processes_ = fail(Code::kUnavailable, "no driver");
  start();
  EXPECT_EQ(runs_, 0u);
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_NE(shown(1).find("no driver"), std::string::npos);
}

TEST_F(PreflightControllerTest, AKubeletThatStartsLateIsWaitedFor) {
  pods_ = fail(Code::kUnavailable, "no kubelet");
  start();
  loop_.advance(kPreflightPodsLimit / 2);
  pods_ = mig::PodsByDevice();
  loop_.advance(kPreflightPoll + kMigSettleTime);
  EXPECT_EQ(running_.size(), 2u);
}

TEST_F(PreflightControllerTest, ResultsBecomeEvidence) {
  start();
  end_run(0, report_of(test_uuid(0), Outcome::kFailed, "a word is wrong"));
  end_run(1, {.ended = RunResult::Ended::kCrashed, .output = {}, .error = "signal 11"});
  end_run(2, report_of(test_uuid(2), Outcome::kNotRun, "CUDA_ERROR_OUT_OF_MEMORY"));
  pass(3);
  EXPECT_FALSE(readings_[test_uuid(0)].passed);
  EXPECT_EQ(readings_[test_uuid(0)].error, "memory: a word is wrong");
  EXPECT_EQ(readings_.size(), 2u);
  EXPECT_EQ(shown(0), "failed: memory: a word is wrong");
  EXPECT_NE(shown(1).find("unknown: signal 11"), std::string::npos);
  EXPECT_NE(shown(2).find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos);
  EXPECT_TRUE(withdrawn().empty()) << "what withdraws the first is its fault";
}

// Others that copy at the same time, or the peer, may be the reason.
TEST_F(PreflightControllerTest, SlowCopiesCountWhenTheGpuIsCheckedAlone) {
  const auto slow = [](unsigned gpu) { return report_of(test_uuid(gpu), Outcome::kSlow, "9 GB/s"); };
  start();
  EXPECT_EQ(peers_[test_uuid(0)], std::vector{test_uuid(1)});
  end_run(0, slow(0));
  end_run(1, slow(1));
  EXPECT_TRUE(readings_.empty());
  pass(2);
  pass(3);
  ASSERT_EQ(running_.size(), 1u) << "one at a time";
  EXPECT_EQ(peers_[test_uuid(0)], std::vector{test_uuid(3)}) << "with another peer";
  end_run(0, slow(0));
  EXPECT_TRUE(readings_[test_uuid(0)].passed);
  EXPECT_EQ(readings_[test_uuid(0)].slow, "memory: 9 GB/s");
  pass(1);
  EXPECT_EQ(readings_[test_uuid(1)].slow, "");
  EXPECT_TRUE(withdrawn().empty());
}

TEST_F(PreflightControllerTest, OnlyASecondHangIsAFault) {
  const RunResult hung{.ended = RunResult::Ended::kTimedOut, .output = {}, .error = "no end within 30s"};
  start();
  end_run(0, hung);
  end_run(1, hung);
  EXPECT_TRUE(readings_.empty());
  pass(2);
  pass(3);
  EXPECT_TRUE(peers_[test_uuid(0)].empty()) << "its peer may have hung";
  end_run(0, hung);
  pass(1);
  EXPECT_EQ(readings_[test_uuid(0)].error, "hung twice: no end within 30s");
  EXPECT_TRUE(readings_[test_uuid(1)].passed);
}

TEST_F(PreflightControllerTest, AFaultyGpuIsCheckedBeforeItReturns) {
  start();
  pass_all();
  loop_.advance(std::chrono::minutes(1));
  set_fault(1, FaultClass::kXidReset, std::nullopt);
  update();
  EXPECT_EQ(runs_, kGpus) << "not while it is broken";
  const auto met = loop_.now();
  loop_.advance(std::chrono::seconds(1));
  set_fault(1, FaultClass::kXidReset, met, met + std::chrono::seconds(30));
  update();
  ASSERT_EQ(runs_, kGpus + 1);
  EXPECT_EQ(absent(1), "") << "its return waits for the result";
  pass(1);
  update();
  EXPECT_EQ(runs_, kGpus + 1);
  loop_.advance(std::chrono::seconds(30));
  ASSERT_EQ(runs_, kGpus + 2) << "once more when the other checks have passed long enough";
  pass(1);
  loop_.advance(std::chrono::minutes(1));
  EXPECT_EQ(runs_, kGpus + 2);
}

TEST_F(PreflightControllerTest, AReturnDoesNotWaitWhereItIsNotToOrCannotBeChecked) {
  policy_.on_return = false;
  start();
  pass_all();
  EXPECT_EQ(absent(2), "gpulet.preflight.when has no return");
  set_fault(2, FaultClass::kXidReset, loop_.now());
  update();
  EXPECT_EQ(runs_, kGpus);
  policy_.on_return = true;
  processes_ = PreflightPorts::Holders{{test_uuid(2), {{812, "process 812"}}}};
  loop_.advance(std::chrono::seconds(1));
  set_fault(2, FaultClass::kXidReset, loop_.now());
  update();
  EXPECT_EQ(runs_, kGpus);
  EXPECT_EQ(absent(2), "the preflight did not run: held by process 812");
}

TEST_F(PreflightControllerTest, AFailedOneIsTriedAgainAtTheInterval) {
  policy_.on_return = false;
  start();
  end_run(0, report_of(test_uuid(0), Outcome::kFailed, "a word is wrong"));
  set_fault(0, FaultClass::kProbeFailed, std::nullopt);
  pass_all();
  update();
  EXPECT_EQ(runs_, kGpus);
  EXPECT_EQ(absent(0), "") << "only a pass ends the fault";
  loop_.advance(policy_.retry_interval - std::chrono::seconds(5));
  EXPECT_EQ(runs_, kGpus);
  loop_.advance(std::chrono::seconds(6));
  EXPECT_EQ(runs_, kGpus + 1);
  EXPECT_EQ(shown(0), "failed: memory: a word is wrong");
}

TEST_F(PreflightControllerTest, AFailedOneIsTriedAgainAfterAReset) {
  start();
  end_run(0, report_of(test_uuid(0), Outcome::kFailed, "a word is wrong"));
  pass_all();
  set_fault(0, FaultClass::kProbeFailed, std::nullopt);
  view_.devices[0].status.reset_at = loop_.now() - std::chrono::hours(1);
  update();
  EXPECT_EQ(runs_, kGpus);
  loop_.advance(std::chrono::seconds(5));
  view_.devices[0].status.reset_at = loop_.now();
  update();
  EXPECT_EQ(runs_, kGpus + 1);
  end_run(0, report_of(test_uuid(0), Outcome::kFailed, "a word is wrong"));
  update();
  EXPECT_EQ(runs_, kGpus + 1) << "once for each reset";
}

TEST_F(PreflightControllerTest, AResetEndsTheRunsWhichBeginAgain) {
  start();
  pass(0);
  ASSERT_EQ(running_.size(), 2u);
  paused_ = "for a reset to end";
  update();
  EXPECT_TRUE(running_.empty());
  ASSERT_EQ(stopped_.size(), 2u);
  stopped_[0]({.ended = RunResult::Ended::kCrashed, .output = {}, .error = "signal 9"});
  EXPECT_EQ(readings_.size(), 1u) << "a killed run says nothing";
  EXPECT_EQ(withdrawn().size(), kGpus - 1) << "they wait";
  EXPECT_EQ(shown(1), "waiting: for a reset to end");
  EXPECT_TRUE(saved_.started.empty()) << "a run that is ended for a reset has not ended the agent";
  loop_.advance(std::chrono::hours(1));
  EXPECT_TRUE(running_.empty());
  paused_.clear();
  loop_.advance(kPreflightPoll + kMigSettleTime);
  pass_all();
  EXPECT_TRUE(withdrawn().empty());
  EXPECT_EQ(readings_.size(), kGpus);
}

TEST_F(PreflightControllerTest, APauseWhileHoldersAreListedSkipsNothing) {
  processes_ = fail(Code::kUnavailable, "the driver is closed");
  controller_.emplace(make_ports("boot-1"), preflight::BootRecord{});
  controller_->update_preflights();
  paused_ = "for a reset to end";
  loop_.advance(kMigSettleTime);
  EXPECT_EQ(withdrawn().size(), kGpus);
  processes_ = PreflightPorts::Holders();
  paused_.clear();
  loop_.advance(kPreflightPoll + kMigSettleTime);
  EXPECT_EQ(running_.size(), 2u);
}

TEST_F(PreflightControllerTest, ItEndsWhenItIsDisabled) {
  start();
  ASSERT_EQ(running_.size(), 2u);
  policy_.enabled = false;
  update();
  EXPECT_TRUE(running_.empty());
  EXPECT_TRUE(withdrawn().empty());
}

}  // namespace
}  // namespace gpulet::agent
