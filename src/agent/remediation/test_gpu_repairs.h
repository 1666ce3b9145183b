// For tests: a node of eight GPUs that GpuRepairer repairs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/test_reporter.h"
#include "agent/remediation/gpu_repairer.h"
#include "repair/test_repairs.h"

namespace gpulet::agent {

using health::FaultClass;
using repair::test_fault;
using repair::test_uuid;

// The ports answer on the loop's next turn.
class GpuRepairerTest : public testing::Test {
 protected:
  GpuRepairerTest() {
    policy_.reset.enabled = policy_.reboot_request.enabled = true;
    snapshot_ = repair::test_snapshot(8);
  }
  void start(repair::Record record = {}, const std::string& boot_id = "boot-1") {
    repairer_.emplace(make_ports(boot_id), std::move(record), policy_.reset.timeout);
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
              if (hangs_pause_) {
                hanging_pause_ = done;
                return;
              }
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
              if (hangs_save_) return hanging_saves_.push_back(done);
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
  bool hangs_save_ = false, hangs_pause_ = false;
  std::vector<std::function<void(Status)>> hanging_saves_;
  std::function<void(Status)> hanging_pause_;
  std::map<DeviceUuid, std::string> withdrawn_, withdrawn_at_reset_, notes_;
  repair::Record saved_, record_at_reset_;
  std::optional<std::string> reboot_;
  std::vector<std::vector<DeviceUuid>> resets_;
  std::vector<DeviceUuid> proven_;
  std::function<void(Status)> finish_reset_;
  unsigned pod_reads_ = 0, pauses_ = 0, resumes_ = 0, snapshots_requested_ = 0;
  std::optional<GpuRepairer> repairer_;
};

}  // namespace gpulet::agent
