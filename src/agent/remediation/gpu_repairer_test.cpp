#include "agent/remediation/gpu_repairer.h"

#include <gtest/gtest.h>

#include "agent/node/test_reporter.h"
#include "repair/test_repairs.h"

namespace gpulet::agent {
namespace {

using health::FaultClass;
using repair::test_fault;
using repair::test_uuid;

constexpr const char* kBoot = "boot-1";

// A node of eight GPUs whose ports answer on the loop's next turn.
class GpuRepairerTest : public testing::Test {
 protected:
  GpuRepairerTest() {
    policy_.reset.enabled = policy_.reboot_request.enabled = true;
    snapshot_ = repair::test_snapshot(8);
  }
  void start(repair::Record record = {}, const std::string& boot_id = kBoot) {
    repairer_.emplace(make_ports(boot_id), std::move(record));
    update();
  }
  // Everything that happens at once.
  void update() {
    repairer_->update_repairs();
    loop_.advance(kMigSettleTime);
  }
  void set_faults(std::map<unsigned, std::vector<health::Fault>> faults) {
    view_ = repair::test_view(8, faults);
  }
  void break_gpu(unsigned gpu) { set_faults({{gpu, {test_fault(FaultClass::kXidReset, {}, 95)}}}); }
  // The fault's recovery condition is met.
  void heal_all() { set_faults({}); }
  void read_snapshot() {
    ++snapshot_.generation;
    update();
  }
  std::string note(unsigned gpu) const {
    const auto found = notes_.find(test_uuid(gpu));
    return found == notes_.end() ? "" : found->second;
  }
  bool was_reported(const std::string& part) const {
    const auto texts = reporter_.reported_texts();
    return std::ranges::any_of(texts, [&](const auto& text) { return text.find(part) != std::string::npos; });
  }
  std::size_t times_reported(const std::string& reason) const {
    const auto reasons = reporter_.reasons();
    return static_cast<std::size_t>(std::ranges::count(reasons, reason));
  }

  GpuRepairPorts make_ports(const std::string& boot_id) {
    return {
        .loop = loop_,
        .reporter = reporter_,
        .read_node = [this]() -> std::optional<RepairNode> {
          return RepairNode{.view = std::make_shared<const health::HealthView>(view_),
                            .snapshot = std::make_shared<const inventory::Snapshot>(snapshot_),
                            .policy = policy_,
                            .busy = busy_};
        },
        .pods =
            [this](auto done) {
              ++pod_reads_;
              loop_.post([this, done] { pods_error_ ? done(fail(*pods_error_)) : done(pods_); });
            },
        .processes =
            [this](auto gpus, auto done) {
              loop_.post([this, gpus, done] {
                GpuRepairPorts::Holders found;
                for (const auto& gpu : gpus) {
                  if (const auto held = processes_.find(gpu); held != processes_.end())
                    found[gpu] = {{812, held->second}};
                }
                done(found);
              });
            },
        .withdraw =
            [this](auto gpus) {
              withdrawn_ = std::move(gpus);
              if (on_withdraw_) std::exchange(on_withdraw_, nullptr)();
            },
        .pause_daemons =
            [this](const auto&, auto done) {
              ++pauses_;
              loop_.post([this, done] { done(pause_result_); });
            },
        .resume_daemons = [this] { ++resumes_; },
        .reset =
            [this](auto gpus, Duration, auto done) {
              resets_.push_back(gpus);
              withdrawn_at_reset_ = withdrawn_;
              record_at_reset_ = saved_;
              finish_reset_ = std::move(done);
            },
        .submit_reset = [this](const DeviceUuid& gpu) { proven_.push_back(gpu); },
        .request_snapshot = [this] { ++snapshots_requested_; },
        .show_notes = [this](auto notes) { notes_ = std::move(notes); },
        .request_reboot = [this](const auto&, const auto& text) { reboot_ = text; },
        .save =
            [this](const auto& record, auto done) {
              if (!save_error_) saved_ = record;
              loop_.post([this, done] { done(save_error_ ? fail(*save_error_) : Status()); });
            },
        .boot_id = boot_id,
    };
  }
  void finish_reset(const Status& status) {
    ASSERT_TRUE(finish_reset_);
    std::exchange(finish_reset_, nullptr)(status);
    loop_.advance(kMigSettleTime);
  }

  ManualLoop loop_;
  RecordingReporter reporter_;
  health::HealthView view_ = repair::test_view(8, {});
  inventory::Snapshot snapshot_;
  repair::Policy policy_;
  std::string busy_;
  mig::PodsByDevice pods_;
  std::optional<Error> pods_error_, save_error_;
  std::map<DeviceUuid, std::string> processes_;
  Status pause_result_;
  std::function<void()> on_withdraw_;
  std::map<DeviceUuid, std::string> withdrawn_, withdrawn_at_reset_, notes_;
  repair::Record saved_, record_at_reset_;
  std::optional<std::string> reboot_;
  std::vector<std::vector<DeviceUuid>> resets_;
  std::vector<DeviceUuid> proven_;
  std::function<void(Status)> finish_reset_;
  unsigned pod_reads_ = 0, pauses_ = 0, resumes_ = 0, snapshots_requested_ = 0;
  std::optional<GpuRepairer> repairer_;
};

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
  EXPECT_EQ(record_at_reset_.attempts.at(test_uuid(3)).count, 1u);
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
  EXPECT_EQ(saved_.attempts.at(test_uuid(3)).count, 1u) << "it counts for a day";
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
  loop_.advance(kRepairPoll + kMigSettleTime);
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
  loop_.advance(kRepairPoll + kMigSettleTime);
  EXPECT_TRUE(resets_.empty()) << "the server still runs";
  processes_.clear();
  loop_.advance(kRepairPoll + kMigSettleTime);
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

TEST_F(GpuRepairerTest, RefusedTwiceItRequestsAReboot) {
  break_gpu(3);
  start();
  finish_reset(fail(Code::kUnavailable, "nvidia-smi: In use by another client"));
  EXPECT_TRUE(was_reported("In use by another client; attempt 1 of 2"));
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_TRUE(proven_.empty());
  loop_.advance(policy_.reset.cooldown - std::chrono::seconds(30));
  EXPECT_EQ(resets_.size(), 1u) << "not within the cooldown";
  EXPECT_NE(note(3).find("cooldown"), std::string::npos) << note(3);
  loop_.advance(std::chrono::minutes(1));
  ASSERT_EQ(resets_.size(), 2u);
  EXPECT_FALSE(reboot_);
  finish_reset(fail(Code::kDeadlineExceeded, "nvidia-smi did not end in 120 s"));
  loop_.advance(kRepairPoll);
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
}

// The agent ended between the reset and its result.
TEST_F(GpuRepairerTest, TheNextAgentKnowsOfAnInterruptedReset) {
  break_gpu(3);
  start();
  const auto left = record_at_reset_;
  ASSERT_TRUE(left.resetting);
  start(left);
  EXPECT_TRUE(was_reported("GpuResetFailed: the agent ended during the reset of GPU-3"));
  EXPECT_FALSE(saved_.resetting);
  EXPECT_EQ(saved_.attempts.at(test_uuid(3)).count, 1u);
  EXPECT_EQ(resets_.size(), 1u) << "within the cooldown";
  EXPECT_TRUE(proven_.empty()) << "no proof of a reset";
  loop_.advance(policy_.reset.cooldown + kRepairPoll + kMigSettleTime);
  EXPECT_EQ(resets_.size(), 2u);
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
