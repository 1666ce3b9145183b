// For tests: PreflightController with a node whose programs, kubelet and driver the test plays.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "agent/mig/mig_change.h"
#include "agent/node/test_reporter.h"
#include "agent/preflight/preflight_controller.h"
#include "base/test_loop.h"
#include "repair/test_repairs.h"

namespace gpulet::agent {

inline preflight::RunResult report_of(const DeviceUuid& gpu, preflight::Outcome outcome,
                                      const std::string& message) {
  return {.ended = preflight::RunResult::Ended::kReported,
          .output = preflight::format_report(
              {.gpu = gpu.str(), .checks = {{.outcome = outcome, .message = message}}}),
          .error = {}};
}

class PreflightControllerTest : public testing::Test {
 protected:
  PreflightControllerTest() {
    policy_.enabled = true;
    policy_.parallel = 2;
  }
  void start(preflight::BootRecord record = {}, const std::string& boot_id = "boot-1") {
    controller_.emplace(make_ports(boot_id), std::move(record));
    update();
  }
  void update() {
    controller_->update_preflights();
    loop_.advance(kMigSettleTime);
  }
  // The running one of this GPU ends.
  void end_run(unsigned gpu, preflight::RunResult result) {
    const auto found = running_.find(repair::test_uuid(gpu));
    ASSERT_NE(found, running_.end()) << gpu;
    const auto done = std::exchange(found->second, nullptr);
    running_.erase(found);
    done(std::move(result));
    loop_.advance(kMigSettleTime);
  }
  void pass(unsigned gpu) {
    end_run(gpu, report_of(repair::test_uuid(gpu), preflight::Outcome::kPassed, "ok"));
  }
  void pass_all() {
    for (unsigned round = 0; round < 8 && !running_.empty(); ++round) {
      for (unsigned gpu = 0; gpu < 8; ++gpu) {
        if (running_.contains(repair::test_uuid(gpu))) pass(gpu);
      }
    }
  }
  void set_fault(unsigned gpu, health::FaultClass fault_class, std::optional<Time> met,
                 std::optional<Time> due = {}) {
    auto fault = repair::test_fault(fault_class);
    fault.condition_met_at = met;
    view_ = repair::test_view(kGpus, {{gpu, {fault}}});
    view_.devices[gpu].status.due = due;
    for (auto& other : snapshot_.gpus) other.health.healthy = true;
    snapshot_.gpus[gpu].health.healthy = false;
  }
  std::map<DeviceUuid, std::string> withdrawn() {
    return controller_->gpus_before_offer(snapshot_, policy_, unfit_);
  }
  bool is_kept_from_pods(const DeviceUuid& gpu) {
    return withdrawn().contains(gpu) || !snapshot_.find(gpu)->health.healthy;
  }
  PreflightPorts make_ports(const std::string& boot_id) {
    return {.loop = loop_,
            .reporter = reporter_,
            .read_node = [this]() -> std::optional<PreflightNode> {
              return PreflightNode{.view = std::make_shared<health::HealthView>(view_),
                                   .snapshot = std::make_shared<inventory::Snapshot>(snapshot_),
                                   .policy = policy_,
                                   .paused = paused_,
                                   .unfit = unfit_,
                                   .paused_gpus = paused_gpus_};
            },
            .pods =
                [this](auto done) {
                  ++pod_reads_;
                  loop_.post([this, done] { done(pods_); });
                },
            .processes = [this](auto, auto done) { loop_.post([this, done] { done(processes_); }); },
            .replan = [] {},
            .run =
                [this](const auto& gpu, auto peers, const auto&, auto done) {
                  EXPECT_TRUE(is_kept_from_pods(gpu)) << "never on one that is offered";
                  for (const auto& peer : peers) EXPECT_TRUE(is_kept_from_pods(peer));
                  ++runs_;
                  peers_[gpu] = std::move(peers);
                  running_[gpu] = std::move(done);
                },
            .stop =
                [this](const auto& gpu) {
                  ASSERT_TRUE(running_.contains(gpu));
                  stopped_.push_back(std::move(running_[gpu]));
                  running_.erase(gpu);
                },
            .submit =
                [this](const DeviceUuid& gpu, const health::ProbeReading& reading) {
                  EXPECT_TRUE(is_kept_from_pods(gpu)) << "evidence comes before the offer";
                  readings_[gpu] = reading;
                },
            .show = [this](auto gpus) { shown_ = std::move(gpus); },
            .save =
                [this](const auto& record, auto done) {
                  saved_ = record;
                  if (!done) return;
                  if (!holds_saves_) return done();
                  held_saves_.push_back(std::move(done));
                },
            .boot_id = boot_id};
  }
  // "unknown: held by Pod …"
  std::string shown(unsigned gpu) {
    const auto& one = shown_[repair::test_uuid(gpu)];
    return one.result + (one.detail.empty() ? "" : ": " + one.detail);
  }
  std::string absent(unsigned gpu) { return shown_[repair::test_uuid(gpu)].absent.value_or(""); }

  static constexpr unsigned kGpus = 4;
  ManualLoop loop_;
  health::HealthView view_ = repair::test_view(kGpus, {});
  inventory::Snapshot snapshot_ = repair::test_snapshot(kGpus);
  preflight::Policy policy_;
  std::map<DeviceUuid, std::string> unfit_;
  std::string paused_;
  std::map<DeviceUuid, std::string> paused_gpus_;
  bool holds_saves_ = false;
  std::vector<std::function<void()>> held_saves_;
  Result<mig::PodsByDevice> pods_ = mig::PodsByDevice();
  Result<PreflightPorts::Holders> processes_ = PreflightPorts::Holders();
  std::map<DeviceUuid, std::function<void(preflight::RunResult)>> running_;
  std::vector<std::function<void(preflight::RunResult)>> stopped_;
  std::map<DeviceUuid, std::vector<DeviceUuid>> peers_;
  std::map<DeviceUuid, health::ProbeReading> readings_;
  std::map<DeviceUuid, Preflights::OfGpu> shown_;
  preflight::BootRecord saved_;
  unsigned runs_ = 0, pod_reads_ = 0;
  RecordingReporter reporter_;
  std::optional<PreflightController> controller_;
};

}  // namespace gpulet::agent
