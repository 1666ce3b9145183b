#include "agent/remediation/gpu_repairer.h"

#include <gtest/gtest.h>

#include "agent/remediation/test_gpu_repairs.h"

namespace gpulet::agent {
namespace {

TEST_F(GpuRepairerTest, DoesNothingUnlessEnabled) {
  policy_ = {};
  break_gpu(3);
  start();
  loop_.advance(std::chrono::minutes(10));
  EXPECT_EQ(pod_reads_, 0u);
  EXPECT_TRUE(resets_.empty() && reporter_.reasons().empty() && notes_.empty() && saved_.is_empty() &&
              !reboot_);
}

TEST_F(GpuRepairerTest, ResetsAnEmptyGpuOnce) {
  break_gpu(3);
  start();
  ASSERT_EQ(resets_.size(), 1u);
  EXPECT_EQ(resets_[0], std::vector{test_uuid(3)});
  EXPECT_TRUE(withdrawn_at_reset_.contains(test_uuid(3)));
  ASSERT_TRUE(record_at_reset_.resetting) << "recorded before nvidia-smi starts";
  EXPECT_EQ(record_at_reset_.attempts.at(test_uuid(3)).size(), 1u);
  EXPECT_EQ(note(3), "Nothing to do: the agent is resetting it");
  EXPECT_TRUE(repairer_->is_resetting());

  finish_reset({});
  EXPECT_TRUE(was_reported("GpuReset: GPU 3 (GPU-3) has been reset: XID 95"));
  EXPECT_EQ(proven_, std::vector{test_uuid(3)});
  EXPECT_FALSE(saved_.resetting);
  EXPECT_TRUE(withdrawn_.contains(test_uuid(3))) << "until the driver has answered for it";
  EXPECT_EQ(snapshots_requested_, 1u);
  heal_all();
  read_snapshot();
  EXPECT_TRUE(withdrawn_.empty());
  loop_.advance(std::chrono::minutes(30));
  EXPECT_EQ(resets_.size(), 1u);
  EXPECT_EQ(repairer_->counts().done, 1u);
  EXPECT_EQ(saved_.attempts.at(test_uuid(3)).size(), 1u) << "it counts for a day";
}

TEST_F(GpuRepairerTest, WaitsForPodsClaimsAndProcesses) {
  break_gpu(3);
  pods_[DeviceId("GPU-3::1")] = "default/trainer";
  start();
  EXPECT_EQ(note(3), "The agent resets it once it is empty: held by Pod default/trainer");
  EXPECT_TRUE(withdrawn_.empty() && resets_.empty());
  processes_[test_uuid(3)] = "process 812 (nv-hostengine)";
  pods_ = {{DeviceId("GPU-4"), "default/other"}};
  loop_.advance(kRepairPoll + kMigSettleTime);
  EXPECT_EQ(note(3), "The agent resets it once it is empty: held by process 812 (nv-hostengine)");
  pods_error_ = Error(Code::kUnavailable, "no kubelet");
  loop_.advance(kRepairPoll + kMigSettleTime);
  EXPECT_NE(note(3).find("no kubelet"), std::string::npos) << note(3);
  pods_error_.reset();
  EXPECT_TRUE(resets_.empty());
  processes_.clear();
  loop_.advance(kRepairPoll + kMigSettleTime);
  EXPECT_EQ(resets_.size(), 1u);
}

// The kubelet answered an Allocate right before the GPU was withdrawn.
TEST_F(GpuRepairerTest, APodThatComesMeanwhileKeepsItsGpu) {
  auto& gpus = snapshot_.gpus;
  gpus[3].compute_major = gpus[4].compute_major = 7;
  gpus[3].nvlinks = {{0, inventory::NvLinkRemote::kGpu, gpus[4].pci}};
  break_gpu(3);
  on_withdraw_ = [this] {
    EXPECT_EQ(withdrawn_.size(), 2u);
    EXPECT_NE(withdrawn_[test_uuid(4)].find("is being reset with GPU 3"), std::string::npos);
    pods_[DeviceId("GPU-4")] = "default/late";
  };
  start();
  EXPECT_TRUE(resets_.empty());
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(note(3).find("is held by Pod default/late"), std::string::npos) << note(3);
  EXPECT_EQ(resumes_, 1u);
  EXPECT_TRUE(saved_.attempts.empty());
  pods_.clear();
  on_withdraw_ = [] { ADD_FAILURE() << "withdrawn again within the cooldown"; };
  loop_.advance(policy_.reset.cooldown - std::chrono::seconds(10));
  EXPECT_NE(note(3).find("tries again within"), std::string::npos) << note(3);
  on_withdraw_ = nullptr;
  loop_.advance(kRepairPoll + std::chrono::seconds(10));
  ASSERT_EQ(resets_.size(), 1u);
  EXPECT_EQ(resets_[0], (std::vector{test_uuid(3), test_uuid(4)}));
  finish_reset({});
  EXPECT_EQ(proven_, (std::vector{test_uuid(3), test_uuid(4)}));
}

TEST_F(GpuRepairerTest, AnMpsDaemonIsStoppedFirstUnlessItIsInUse) {
  break_gpu(3);
  processes_[test_uuid(3)] = "process 90 (nvidia-cuda-mps-server)";
  pause_result_ = fail(Code::kFailedPrecondition, "default/other uses nvidia.com/gpu.shared");
  start();
  EXPECT_EQ(pauses_, 1u);
  EXPECT_TRUE(resets_.empty());
  EXPECT_NE(note(3).find("default/other uses"), std::string::npos) << note(3);
  pause_result_ = {};
  loop_.advance(policy_.reset.cooldown + kRepairPoll + kMigSettleTime);
  EXPECT_EQ(pauses_, 2u);
  EXPECT_TRUE(resets_.empty()) << "the server still runs";
  processes_.clear();
  loop_.advance(policy_.reset.cooldown + kRepairPoll + kMigSettleTime);
  EXPECT_EQ(resets_.size(), 1u);
}

TEST_F(GpuRepairerTest, AnotherGpuIsNotHeldUpByOneThatIsInUse) {
  set_faults({{1, {test_fault(FaultClass::kXidReset)}}, {2, {test_fault(FaultClass::kXidEcc)}}});
  pods_[DeviceId("GPU-1")] = "default/trainer";
  start();
  ASSERT_EQ(resets_.size(), 1u);
  EXPECT_EQ(resets_[0], std::vector{test_uuid(2)});
  EXPECT_NE(note(1).find("default/trainer"), std::string::npos);
}

TEST_F(GpuRepairerTest, ADryRunOnlyReportsOnce) {
  policy_.reset.dry_run = true;
  break_gpu(3);
  start();
  loop_.advance(std::chrono::minutes(1));
  EXPECT_TRUE(resets_.empty() && withdrawn_.empty() && saved_.is_empty());
  EXPECT_EQ(times_reported("GpuResetPlanned"), 1u);
  EXPECT_TRUE(was_reported("would reset GPU 3 (GPU-3) (dry run): XID 95"));
  EXPECT_EQ(repairer_->counts().dry_run, 1u);
}

TEST_F(GpuRepairerTest, AResetThatCannotBeRecordedIsNotDone) {
  save_error_ = Error(Code::kIo, "no space");
  break_gpu(3);
  start();
  EXPECT_TRUE(resets_.empty());
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(note(3).find("no space"), std::string::npos) << note(3);
  // However often: an attempt that was not made is none.
  loop_.advance(3 * policy_.reset.cooldown);
  EXPECT_TRUE(resets_.empty());
  EXPECT_FALSE(reboot_);
  EXPECT_EQ(times_reported("GpuRebootRequested"), 0u);
  save_error_.reset();
  loop_.advance(policy_.reset.cooldown + kRepairPoll);
  ASSERT_EQ(resets_.size(), 1u);
  EXPECT_EQ(record_at_reset_.attempts.at(test_uuid(3)).size(), 1u);
}

// The program, a right or the driver is missing: that says nothing about the GPU.
TEST_F(GpuRepairerTest, AResetThatNeverBeganIsNoAttempt) {
  break_gpu(3);
  start();
  for (const auto code : {Code::kNotFound, Code::kPermissionDenied, Code::kUnavailable}) {
    ASSERT_TRUE(finish_reset_);
    finish_reset(fail(code, "no nvidia-smi"));
    EXPECT_TRUE(withdrawn_.empty());
    EXPECT_TRUE(saved_.is_empty());
    EXPECT_NE(note(3).find("the reset did not begin: no nvidia-smi"), std::string::npos) << note(3);
    loop_.advance(policy_.reset.cooldown + kRepairPoll);
  }
  EXPECT_EQ(resets_.size(), 4u);
  EXPECT_EQ(repairer_->counts().failed, 0u);
  EXPECT_FALSE(reboot_);
}

// Right before nvidia-smi starts, the decision is made again.
TEST_F(GpuRepairerTest, WhatChangesWhileItIsWithdrawnKeepsItFromTheReset) {
  const std::pair<const char*, std::function<void()>> rows[] = {
      {"it no longer needs a reset", [this] { heal_all(); }},
      {"it no longer needs a reset", [this] { policy_.reset.enabled = false; }},
      {"gpulet.repair.reset.dryRun is set", [this] { policy_.reset.dry_run = true; }},
      {"the driver is not available", [this] { busy_ = "the driver is not available"; }},
      {"an operator cordoned it",
       [this] { set_faults({{3, {test_fault(FaultClass::kXidReset), test_fault(FaultClass::kCordoned)}}}); }},
      {"other GPUs are to be reset with it now",
       [this] {
         for (auto& gpu : snapshot_.gpus) gpu.compute_major = 7;
         snapshot_.gpus[3].nvlinks = {{0, inventory::NvLinkRemote::kGpu, snapshot_.gpus[4].pci}};
       }},
  };
  const auto policy = policy_;
  for (const auto& [why, change] : rows) {
    policy_ = policy;
    busy_.clear();
    snapshot_ = repair::test_snapshot(8);
    break_gpu(3);
    on_withdraw_ = change;
    start();
    EXPECT_TRUE(resets_.empty()) << why;
    EXPECT_TRUE(withdrawn_.empty()) << why;
    EXPECT_TRUE(saved_.is_empty()) << why;
    EXPECT_NE(note(3).find(why), std::string::npos) << note(3);
  }
}

TEST_F(GpuRepairerTest, ADiskThatHangsReturnsTheGroup) {
  hangs_save_ = true;
  break_gpu(3);
  start();
  ASSERT_TRUE(withdrawn_.contains(test_uuid(3)));
  loop_.advance(kWithdrawnLimit);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(note(3).find("the record is not written yet"), std::string::npos) << note(3);
  ASSERT_FALSE(hanging_saves_.empty());
  hangs_save_ = false;
  for (const auto& done : std::exchange(hanging_saves_, {})) done({});
  loop_.advance(kRepairPoll);
  EXPECT_TRUE(resets_.empty()) << "the answer came too late";
  loop_.advance(policy_.reset.cooldown + kRepairPoll);
  ASSERT_EQ(resets_.size(), 1u);
  EXPECT_EQ(record_at_reset_.attempts.at(test_uuid(3)).size(), 1u);
}

TEST_F(GpuRepairerTest, DaemonsThatStopTooLateStartAgain) {
  hangs_pause_ = true;
  break_gpu(3);
  start();
  loop_.advance(kWithdrawnLimit);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_NE(note(3).find("MPS daemons have not stopped yet"), std::string::npos) << note(3);
  EXPECT_EQ(resumes_, 1u);
  ASSERT_TRUE(hanging_pause_);
  hanging_pause_({});
  EXPECT_EQ(resumes_, 2u);
  EXPECT_TRUE(resets_.empty());
}

// Each member that has a fault is tried with it.
TEST_F(GpuRepairerTest, AttemptsCountForEachFaultyMember) {
  for (auto& gpu : snapshot_.gpus) gpu.compute_major = 7;
  for (const unsigned other : {4u, 5u})
    snapshot_.gpus[3].nvlinks.push_back({other, inventory::NvLinkRemote::kGpu, snapshot_.gpus[other].pci});
  set_faults({{3, {test_fault(FaultClass::kXidReset)}}, {4, {test_fault(FaultClass::kXidEcc)}}});
  start();
  ASSERT_EQ(resets_.size(), 1u);
  EXPECT_EQ(resets_[0].size(), 3u);
  EXPECT_EQ(record_at_reset_.attempts.size(), 2u);
  EXPECT_TRUE(record_at_reset_.attempts.contains(test_uuid(3)) &&
              record_at_reset_.attempts.contains(test_uuid(4)));
  finish_reset(fail(Code::kFailedPrecondition, "no"));
  loop_.advance(policy_.reset.cooldown - std::chrono::seconds(30));
  EXPECT_EQ(resets_.size(), 1u) << "not for the other member either";
}

// A reading from before the reset, or one without a member, proves nothing.
TEST_F(GpuRepairerTest, StaysWithdrawnUntilAllMembersAnswer) {
  break_gpu(3);
  start();
  ++snapshot_.generation;
  finish_reset({});
  update();
  EXPECT_FALSE(withdrawn_.empty()) << "read while it was reset";
  snapshot_.gpus[3].unreadable = Error(Code::kUnavailable, "no");
  read_snapshot();
  EXPECT_FALSE(withdrawn_.empty());
  snapshot_.gpus[3].unreadable.reset();
  read_snapshot();
  EXPECT_TRUE(withdrawn_.empty());
}

TEST_F(GpuRepairerTest, WaitsWhileSomethingElseChangesGpus) {
  busy_ = "a MIG layout is being changed";
  break_gpu(3);
  start();
  EXPECT_EQ(note(3), "The agent does not reset it yet: a MIG layout is being changed");
  EXPECT_EQ(pod_reads_, 0u);
  busy_.clear();
  loop_.advance(kRepairPoll + kMigSettleTime);
  EXPECT_EQ(resets_.size(), 1u);
}

}  // namespace
}  // namespace gpulet::agent
