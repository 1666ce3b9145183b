#include "agent/mig/demand_controller.h"

#include <gtest/gtest.h>

#include "agent/mig/test_mig.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

// The controller and the MIG manager on two simulated GPUs, both by a rule of seven small devices.
class MigDemandTest : public MigManagerTest {
 protected:
  MigDemandTest() {
    for (std::size_t i = 0; i < 2; ++i) {
      targets_.push_back({hardware_.mig_state(i).uuid, "all-1g.10gb", std::nullopt, "node.yaml:4:7"});
      targets_.back().on_demand = true;
    }
    start_manager();
    start_controller();
    advance_controller(20s);
  }
  void start_manager() {
    auto ports = make_ports();
    ports.request_snapshot = [this] { pass_targets(); };
    ports.shows_allocations = [this] { return shows_allocations_; };
    ports.round_ended = [this](const auto& failed) {
      if (controller_) controller_->on_round_ended(failed);
    };
    manager_.emplace(std::move(ports), 1);
  }
  void start_controller() {
    controller_.emplace(MigDemandPorts{
        .loop = loop_,
        .hardware = hardware_,
        .pods = [this](auto done) { loop_.post([this, done = std::move(done)] { done(holders_); }); },
        .layouts = [](const auto& name, auto gpus) { return mig::derived_layouts(name, gpus); },
        .resource_name = [](const std::string& profile) { return std::optional(resource_of(profile)); },
        .is_busy = [this] { return manager_->is_busy(); },
        .changed = [this] { pass_targets(); },
        .shows_allocations = [this] { return shows_allocations_; }});
    controller_->set_demand(demand_);
    pass_targets();
  }
  void restart_agent() {
    start_manager();
    start_controller();
    advance_controller(5s);
  }
  // As the agent's component does on each change.
  void pass_targets() {
    auto snapshot = std::make_shared<inventory::Snapshot>(*hardware_.make_snapshot());
    auto targets = targets_;
    // As mig_targets() does.
    if (unreadable_) {
      snapshot->gpus[*unreadable_].unreadable = Error(Code::kUnavailable, "the GPU does not answer");
      targets.erase(targets.begin() + static_cast<std::ptrdiff_t>(*unreadable_));
    }
    controller_->set_targets(targets, settings_, snapshot);
    manager_->set_targets(controller_->adjust_targets(targets), snapshot);
  }
  void advance_controller(Duration time) {
    for (Duration passed{}; passed < time; passed += 500ms) {
      loop_.advance(500ms);
      if (!manager_->is_busy()) pass_targets();
    }
  }
  static ResourceName resource_of(const std::string& profile) {
    return ResourceName("nvidia.com/mig-" + profile);
  }
  void want(const std::string& profile, unsigned count = 1) {
    demand_ = {std::to_string(++renewals_), {{resource_of(profile), count, {"team/a"}}}};
    controller_->set_demand(demand_);
  }
  void want_nothing() {
    demand_ = {std::to_string(++renewals_), {}};
    controller_->set_demand(demand_);
  }
  // The extender confirms its demand while the time passes.
  void renew_for(Duration time) {
    for (Duration passed{}; passed < time; passed += 1min) {
      demand_.renewed = std::to_string(++renewals_);
      controller_->set_demand(demand_);
      advance_controller(1min);
    }
  }
  // A Pod takes an idle device of the profile. Returns its UUID.
  std::string admit(const std::string& profile, const std::string& pod = "team/a") {
    for (std::size_t gpu = 0; gpu < 2; ++gpu) {
      const auto state = hardware_.mig_state(gpu);
      for (const auto& instance : state.instances) {
        const std::string uuid = instance.compute.at(0).uuid.str();
        if (mig::find_profile(state, instance.profile)->name != profile || holders_->contains(DeviceId(uuid)))
          continue;
        (*holders_)[DeviceId(uuid)] = pod;
        controller_->on_devices_allocated();
        return uuid;
      }
    }
    return "";
  }
  bool exists(const std::string& uuid) const {
    for (std::size_t gpu = 0; gpu < 2; ++gpu) {
      for (const auto& instance : hardware_.mig_state(gpu).instances) {
        if (instance.compute.at(0).uuid.str() == uuid) return true;
      }
    }
    return false;
  }
  unsigned offered(const std::string& profile) const {
    const auto* found = controller_->offer().find(resource_of(profile));
    return found != nullptr ? found->count : 0;
  }

  config::MigOnDemand settings_{.max_gpus = 1, .min_interval = 10min, .idle = 10min};
  scheduler::MigDemand demand_;
  unsigned renewals_ = 0;
  bool shows_allocations_ = true;
  std::optional<std::size_t> unreadable_;  // GPU
  std::optional<MigDemandController> controller_;
};

TEST_F(MigDemandTest, FirstAppliesTheRule) {
  EXPECT_EQ(layout_text(0), "7 × 1g.10gb");
  EXPECT_EQ(layout_text(1), "7 × 1g.10gb");
  EXPECT_EQ(offered("1g.10gb"), 14u);
  EXPECT_EQ(offered("3g.40gb"), 2u) << "of the one GPU that may be cut";
  EXPECT_EQ(controller_->reconfigurations(), MigReconfigurations{});
}

TEST_F(MigDemandTest, CutsAroundAPodAndReturns) {
  const auto held = admit("1g.10gb", "team/small");
  want("3g.40gb");
  advance_controller(20s);
  const auto cut = admit("3g.40gb");
  ASSERT_NE(cut, "") << layout_text(0) << ", " << layout_text(1);
  EXPECT_TRUE(exists(held));
  EXPECT_EQ(controller_->reconfigurations().for_demand, 1u);
  EXPECT_NE(events_.recorded.back().second.find("for Pod team/a, which waits for nvidia.com/mig-3g.40gb"),
            std::string::npos)
      << events_.recorded.back().second;
  want_nothing();
  advance_controller(20min);
  EXPECT_TRUE(exists(cut)) << "in use";
  holders_->clear();
  advance_controller(9min);
  EXPECT_TRUE(exists(cut)) << "idle for less than `idle`";
  advance_controller(2min);
  EXPECT_EQ(layout_text(0), "7 × 1g.10gb");
  EXPECT_EQ(layout_text(1), "7 × 1g.10gb");
  EXPECT_EQ(controller_->reconfigurations().returned, 1u);
}

TEST_F(MigDemandTest, ADeviceThatIsWantedStaysAndOthersWait) {
  want("3g.40gb", 2);
  advance_controller(20s);
  EXPECT_EQ(offered("3g.40gb"), 2u);
  renew_for(11min);
  EXPECT_NE(admit("3g.40gb"), "");
  EXPECT_NE(admit("3g.40gb"), "");
  want("7g.80gb");
  renew_for(11min);
  EXPECT_EQ(admit("7g.80gb"), "") << "maxGpus are cut already";
  EXPECT_EQ(offered("7g.80gb"), 0u);
  const auto* refused = controller_->offer().find(resource_of("7g.80gb"));
  EXPECT_NE(refused->why.find("2 × 3g.40gb in use"), std::string::npos) << refused->why;
  EXPECT_NE(refused->why.find("maxGpus are cut already"), std::string::npos) << refused->why;
}

TEST_F(MigDemandTest, ADemandThatIsNotRenewedIsVoid) {
  want("3g.40gb");
  advance_controller(20s);
  EXPECT_EQ(controller_->reconfigurations().for_demand, 1u);
  advance_controller(20min);
  EXPECT_EQ(controller_->reconfigurations().returned, 1u) << "the extender has ended";
}

TEST_F(MigDemandTest, APodThatComesFirstKeepsItsDevice) {
  drains_ = true;
  want("7g.80gb");
  std::string held;
  // Between the decision and the change.
  for (int i = 0; i < 60'000 && withdrawn_.empty(); ++i) loop_.advance(1ms);
  ASSERT_FALSE(withdrawn_.empty());
  const bool is_first = withdrawn_.begin()->first == hardware_.mig_state(0).uuid;
  const auto state = hardware_.mig_state(is_first ? 0 : 1);
  held = state.instances.front().compute.front().uuid.str();
  (*holders_)[DeviceId(held)] = "team/late";
  controller_->on_devices_allocated();
  renew_for(2min);
  EXPECT_TRUE(exists(held));
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(offered("7g.80gb"), 1u) << "of the other GPU";
  EXPECT_TRUE(api_.requested.empty());
}

TEST_F(MigDemandTest, NoPodIsEvictedForADemand) {
  drains_ = true;
  ASSERT_NE(admit("1g.10gb", "team/small"), "");
  want("3g.40gb");
  renew_for(5min);
  want_nothing();
  ASSERT_NE(admit("3g.40gb"), "");
  advance_controller(20min);
  EXPECT_TRUE(api_.requested.empty());
}

TEST_F(MigDemandTest, ARestartedAgentKeepsWhatWasCut) {
  want("3g.40gb");
  advance_controller(20s);
  restart_agent();
  advance_controller(9min);
  const auto cut = admit("3g.40gb");
  EXPECT_NE(cut, "") << "the Pod may be on its way";
  EXPECT_EQ(offered("7g.80gb"), 0u) << "minInterval counts from the start";
  holders_->clear();
  advance_controller(15min);
  EXPECT_EQ(layout_text(0), "7 × 1g.10gb");
  EXPECT_EQ(layout_text(1), "7 × 1g.10gb");
}

TEST_F(MigDemandTest, WithoutTheHoldersNothingIsIdle) {
  holders_ = fail(Code::kUnavailable, "the kubelet does not respond");
  want("3g.40gb");
  const auto before = controller_->adjust_targets(targets_);
  renew_for(5min);
  EXPECT_EQ(controller_->adjust_targets(targets_), before);
}

TEST_F(MigDemandTest, AnAllocationThatIsNotListedYetIsNotIdle) {
  shows_allocations_ = false;
  want("3g.40gb");
  const auto before = controller_->adjust_targets(targets_);
  renew_for(5min);
  EXPECT_EQ(controller_->adjust_targets(targets_), before) << "nothing is decided";
  shows_allocations_ = true;
  for (int i = 0; i < 60'000 && withdrawn_.empty(); ++i) loop_.advance(1ms);
  ASSERT_FALSE(withdrawn_.empty());
  shows_allocations_ = false;  // a Pod came between the decision and the change
  hardware_.applied.clear();
  renew_for(5min);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_TRUE(hardware_.applied.empty()) << "nor done";
  shows_allocations_ = true;
  renew_for(2min);
  EXPECT_EQ(hardware_.applied.size(), 1u);
}

TEST_F(MigDemandTest, WhatWasThereAtTheStartCountsOnceRenewed) {
  want("3g.40gb");
  shows_allocations_ = false;  // so that nothing is cut for it yet
  restart_agent();
  shows_allocations_ = true;
  advance_controller(5min);
  EXPECT_EQ(layout_text(0), layout_text(1)) << "nobody knows how old it is";
  renew_for(1min);
  EXPECT_NE(layout_text(0), layout_text(1));
}

TEST_F(MigDemandTest, AFailedChangeIsNotTriedAgainAtOnce) {
  hardware_.fail_next = true;
  want("3g.40gb");
  renew_for(1min);
  ASSERT_FALSE(hardware_.fail_next);
  EXPECT_EQ(hardware_.applied.size(), 4u) << "two by the rule, one failed, and the other GPU";
  EXPECT_NE(hardware_.applied.at(2), hardware_.applied.at(3));
  EXPECT_NE(admit("3g.40gb"), "");
}

TEST_F(MigDemandTest, ACutGpuThatCannotBeReadCounts) {
  want("3g.40gb", 2);
  advance_controller(20s);
  ASSERT_EQ(controller_->reconfigurations().for_demand, 1u);
  unreadable_ = layout_text(0) == "7 × 1g.10gb" ? 1 : 0;
  want("2g.20gb");
  renew_for(15min);
  EXPECT_EQ(layout_text(1 - *unreadable_), "7 × 1g.10gb") << "maxGpus are cut";
  unreadable_.reset();
  pass_targets();
  renew_for(15min);
  EXPECT_NE(admit("2g.20gb"), "");
}

TEST_F(MigDemandTest, ADemandForUnknownDevicesIsIgnored) {
  want("9g.999gb", 512);
  demand_.requests.push_back({ResourceName("nvidia.com/gpu"), 1, {}});
  controller_->set_demand(demand_);
  renew_for(5min);
  EXPECT_EQ(layout_text(0), "7 × 1g.10gb");
  EXPECT_EQ(controller_->reconfigurations(), MigReconfigurations{});
}

TEST_F(MigDemandTest, ARuleOfTheOperatorDoesNotWait) {
  want("3g.40gb");
  advance_controller(20s);
  want_nothing();
  for (auto& target : targets_) target.layout = "all-balanced";
  advance_controller(20s);
  EXPECT_EQ(layout_text(0), layout_text(1));
  EXPECT_EQ(hardware_.mig_state(0).instances.size(), 4u);
}

TEST(MigDemandTargets, TheLabelHasPriority) {
  inventory::Snapshot snapshot;
  auto& gpu = snapshot.gpus.emplace_back();
  gpu.uuid = DeviceUuid("GPU-0");
  gpu.mig_capable = true;
  config::Config config;
  config.gpulet.mig.manage = true;
  config.gpulet.mig.on_demand.max_gpus = 1;
  config::Mig mode;
  mode.layout = "all-1g.10gb";
  mode.on_demand = true;
  config.gpulet.partition.emplace_back().mode = mode;
  EXPECT_TRUE(mig_targets(snapshot, config, {}).at(0).on_demand);
  EXPECT_FALSE(mig_targets(snapshot, config, {{kMigConfigLabel, "all-balanced"}}).at(0).on_demand);
  config.gpulet.mig.on_demand.max_gpus = 0;
  EXPECT_FALSE(mig_targets(snapshot, config, {}).at(0).on_demand) << "off by default";
}

}  // namespace
}  // namespace gpulet::agent
