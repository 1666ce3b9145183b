// Requests for a reboot, and what the next agent does about those and about a reset of an earlier one.
#include "agent/remediation/gpu_repairer.h"

#include <gtest/gtest.h>

#include "agent/remediation/test_gpu_repairs.h"

namespace gpulet::agent {
namespace {

TEST_F(GpuRepairerTest, RefusedTwiceItRequestsAReboot) {
  break_gpu(3);
  start();
  finish_reset(fail(Code::kFailedPrecondition, "nvidia-smi: In use by another client"));
  EXPECT_TRUE(was_reported("In use by another client; attempt 1 of 2"));
  EXPECT_TRUE(withdrawn_.contains(test_uuid(3))) << "it may have begun";
  EXPECT_EQ(snapshots_requested_, 1u);
  read_snapshot();
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_TRUE(proven_.empty());
  loop_.advance(policy_.reset.cooldown - std::chrono::seconds(30));
  EXPECT_EQ(resets_.size(), 1u) << "not within the cooldown";
  EXPECT_NE(note(3).find("cooldown"), std::string::npos) << note(3);
  loop_.advance(std::chrono::minutes(1));
  ASSERT_EQ(resets_.size(), 2u);
  EXPECT_FALSE(reboot_);
  finish_reset(fail(Code::kDeadlineExceeded, "nvidia-smi did not end in 120 s"));
  loop_.advance(kMigVerifyTimeout + kRepairPoll);
  ASSERT_TRUE(reboot_);
  EXPECT_NE(reboot_->find("GPU 3 (GPU-3): XID 95"), std::string::npos) << *reboot_;
  EXPECT_EQ(times_reported("GpuRebootRequested"), 1u);
  EXPECT_TRUE(repairer_->counts().is_reboot_requested);
  EXPECT_EQ(repairer_->counts().failed, 2u);
  EXPECT_NE(note(3).find("Reboot the node"), std::string::npos) << note(3);

  // The next agent of this boot reports nothing again; that of the next one takes the request back.
  start(saved_);
  EXPECT_TRUE(reboot_);
  EXPECT_EQ(times_reported("GpuRebootRequested"), 1u);
  heal_all();
  start(saved_, "boot-2");
  EXPECT_FALSE(reboot_);
  ASSERT_TRUE(saved_.reboot);
  // Within a day, another reboot is not requested.
  break_gpu(3);
  update();
  EXPECT_FALSE(reboot_);
  EXPECT_TRUE(was_reported("GpuRepairFailed: GPU 3 (GPU-3) is not repaired: the reboot that was requested"));
  update();
  EXPECT_EQ(times_reported("GpuRepairFailed"), 1u);
  EXPECT_EQ(resets_.size(), 2u);
}

TEST_F(GpuRepairerTest, ARequestEndsWithItsFault) {
  set_faults({{5, {test_fault(FaultClass::kXidReboot, {}, 79)}}});
  policy_.reset.enabled = false;
  start();
  EXPECT_TRUE(reboot_);
  ASSERT_TRUE(saved_.reboot);
  heal_all();
  update();
  EXPECT_FALSE(reboot_);
  EXPECT_FALSE(saved_.reboot);
  EXPECT_EQ(times_reported("GpuRebootRequestEnded"), 1u);
  EXPECT_EQ(pod_reads_, 0u);
}

// A lost GPU that the driver lists no longer still needs the reboot.
TEST_F(GpuRepairerTest, ARequestOutlastsItsGpuAndTheAgent) {
  set_faults({{5, {test_fault(FaultClass::kLost)}}});
  start();
  ASSERT_TRUE(reboot_);
  view_.devices[5].gpu_index.reset();
  snapshot_.gpus.erase(snapshot_.gpus.begin() + 5);
  update();
  EXPECT_TRUE(reboot_);
  view_.devices.erase(view_.devices.begin() + 5);
  start(saved_);
  EXPECT_TRUE(reboot_);
  EXPECT_EQ(times_reported("GpuRebootRequested"), 1u);
  EXPECT_EQ(times_reported("GpuRebootRequestEnded"), 0u);
  start(saved_, "boot-2");
  EXPECT_FALSE(reboot_);
}

// Settings that were switched off over a restart.
TEST_F(GpuRepairerTest, ADisabledOneEndsARequest) {
  set_faults({{5, {test_fault(FaultClass::kXidReboot)}}});
  start();
  ASSERT_TRUE(reboot_ && saved_.reboot);
  policy_ = {};
  start(saved_);
  EXPECT_FALSE(reboot_);
  EXPECT_TRUE(saved_.is_empty());
}

// The agent ended between the reset and its result.
TEST_F(GpuRepairerTest, TheNextAgentKnowsOfAnInterruptedReset) {
  break_gpu(3);
  start();
  const auto left = record_at_reset_;
  ASSERT_TRUE(left.resetting);
  start(left);
  EXPECT_TRUE(was_reported("GpuResetFailed: the agent ended or was reconfigured during the reset of GPU-3"));
  EXPECT_TRUE(withdrawn_.contains(test_uuid(3))) << "nvidia-smi may still run";
  EXPECT_TRUE(saved_.resetting);
  const auto resumes = resumes_;
  loop_.advance(policy_.reset.timeout);
  EXPECT_EQ(resumes_, resumes + 1) << "MPS daemons that were paused for the reset";
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_FALSE(saved_.resetting);
  EXPECT_EQ(saved_.attempts.at(test_uuid(3)).size(), 1u);
  EXPECT_EQ(resets_.size(), 1u) << "within the cooldown";
  EXPECT_TRUE(proven_.empty()) << "no proof of a reset";
  loop_.advance(policy_.reset.cooldown + kRepairPoll + kMigSettleTime);
  EXPECT_EQ(resets_.size(), 2u);
  // Not after a reboot, or once the program would have been ended.
  heal_all();
  withdrawn_.clear();
  start(left, "boot-2");
  EXPECT_FALSE(withdrawn_.contains(test_uuid(3)));
  EXPECT_FALSE(saved_.resetting);
  auto old = left;
  old.resetting->since = loop_.wall_now() - policy_.reset.timeout;
  start(old);
  EXPECT_FALSE(saved_.resetting);
}

}  // namespace
}  // namespace gpulet::agent
