#include "agent/mig_manager.h"

#include <gtest/gtest.h>

#include "base/manual_loop.h"
#include "mig/derive.h"
#include "mig/test_states.h"

namespace gpulet::agent {
namespace {

using mig::states::add;

// Two H100 on the simulator's state, behind calls that answer a turn later.
class FakeHardware final : public MigHardware {
 public:
  explicit FakeHardware(ManualLoop& loop) : loop_(loop), machine_(mig::states::machine("hgx-h100")) {}

  void read(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) override {
    loop_.post([this, gpu, done = std::move(done)] { done(state(index_of(gpu))); });
  }
  void apply(const DeviceUuid& gpu, const mig::Plan& plan,
             std::function<void(Result<MigApplied>)> done) override {
    applied.push_back(index_of(gpu));
    loop_.post([this, gpu, plan, done = std::move(done)] {
      if (on_apply) on_apply();
      if (fail_next) {
        fail_next = false;
        return done(fail(Code::kFailedPrecondition, "in use"));
      }
      auto& there = machine_->gpus[index_of(gpu)];
      if (plan.set_mode) mig::states::enable(there, *plan.set_mode);
      EXPECT_EQ(mig::states::carry_out(there, plan), "");
      done(MigApplied{});
    });
  }
  mig::State state(std::size_t index) const {
    return mig::states::state_of(machine_->gpus[index], static_cast<unsigned>(index));
  }
  sim::Gpu& gpu(std::size_t index) { return machine_->gpus[index]; }
  inventory::SnapshotPtr snapshot() const {
    auto made = std::make_shared<inventory::Snapshot>();
    for (unsigned i = 0; i < 2; ++i) {
      const auto now = state(i);
      inventory::Gpu one;
      one.index = i;
      one.uuid = now.uuid;
      one.mig_capable = true;
      one.mig_enabled = now.enabled;
      for (const auto& instance : now.instances) {
        for (const auto& compute : instance.compute) {
          inventory::MigDevice device;
          device.uuid = compute.uuid;
          device.profile = mig::find_profile(now, instance.profile)->name;
          device.placement_start = instance.placement.start;
          one.mig_devices.push_back(std::move(device));
        }
      }
      made->gpus.push_back(std::move(one));
    }
    return made;
  }

  std::vector<std::size_t> applied;
  bool fail_next = false;
  std::function<void()> on_apply;

 private:
  std::size_t index_of(const DeviceUuid& gpu) const { return gpu == state(0).uuid ? 0 : 1; }
  ManualLoop& loop_;
  std::unique_ptr<sim::Machine> machine_;
};

class Events final : public Reporter {
 public:
  void event(Severity, std::string_view reason, const std::string& message) override {
    said.emplace_back(std::string(reason), message);
  }
  std::size_t count(const std::string& reason) const {
    return static_cast<std::size_t>(
        std::ranges::count(said, reason, [](const auto& entry) { return entry.first; }));
  }
  std::vector<std::pair<std::string, std::string>> said;
};

class MigManagerTest : public testing::Test {
 protected:
  MigManagerTest()
      : manager_(
            {.loop = loop_,
             .hardware = hardware_,
             .reporter = events_,
             .pods = [this](auto done) { loop_.post([this, done = std::move(done)] { done(holders_); }); },
             .layouts = [](const auto& name, auto gpus) { return mig::derived(name, gpus); },
             .withdraw =
                 [this](auto gpus) {
                   withdrawn_ = std::move(gpus);
                   ever_withdrawn_.merge(std::map(withdrawn_));
                 },
             .read_again = [this] { update(); },
             .tell_state = [this](auto state) { states_.emplace_back(state); }},
            1) {}

  void want(const std::string& layout) {
    wishes_.clear();
    for (std::size_t i = 0; i < 2; ++i) {
      wishes_.push_back(
          {hardware_.state(i).uuid, layout, std::nullopt, "the label mig.config=" + layout, true});
    }
    update();
  }
  void update() { manager_.update(wishes_, hardware_.snapshot()); }
  std::string devices(std::size_t gpu) const { return mig::describe(mig::layout_now(hardware_.state(gpu))); }

  ManualLoop loop_;
  FakeHardware hardware_{loop_};
  Events events_;
  Result<std::map<DeviceId, std::string>> holders_ = std::map<DeviceId, std::string>{};
  std::map<DeviceUuid, std::string> withdrawn_, ever_withdrawn_;
  std::vector<std::string> states_;
  std::vector<MigWish> wishes_;
  MigManager manager_;
};

TEST_F(MigManagerTest, MakesEachGpuAsTheLabelSaysOneAtATime) {
  std::size_t withdrawn_at_once = 0;
  hardware_.on_apply = [&] { withdrawn_at_once = std::max(withdrawn_at_once, withdrawn_.size()); };
  want("all-balanced");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_EQ(devices(0), devices(1));
  EXPECT_EQ(hardware_.state(0).instances.size(), 4u);
  EXPECT_EQ(withdrawn_at_once, 1u);
  EXPECT_EQ(ever_withdrawn_.size(), 2u);
  EXPECT_TRUE(withdrawn_.empty());
  EXPECT_EQ(states_, (std::vector<std::string>{"pending", "success"}));
  EXPECT_EQ(events_.count("MigApplied"), 2u);
}

TEST_F(MigManagerTest, WhatIsThereAlreadyIsLeftAlone) {
  want("all-disabled");
  loop_.advance(std::chrono::seconds(2));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_TRUE(ever_withdrawn_.empty());
  EXPECT_EQ(states_, std::vector<std::string>{"success"});
}

TEST_F(MigManagerTest, AGpuThatAPodHoldsWaitsOfferedAndTheOthersChange) {
  holders_ =
      std::map<DeviceId, std::string>{{DeviceId(hardware_.state(0).uuid.str() + "::1"), "default/train"}};
  want("all-1g.10gb");
  loop_.advance(std::chrono::seconds(3));
  EXPECT_FALSE(hardware_.state(0).enabled);
  EXPECT_EQ(hardware_.state(1).instances.size(), 7u);
  EXPECT_EQ(ever_withdrawn_.size(), 1u);
  EXPECT_EQ(states_.back(), "pending");
  EXPECT_EQ(events_.count("MigBlocked"), 1u) << "said once, however often it is tried";
  EXPECT_NE(events_.said.front().second.find("default/train"), std::string::npos);

  holders_ = std::map<DeviceId, std::string>{};
  loop_.advance(kMigBackoff.longest * 2);
  EXPECT_EQ(hardware_.state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerTest, APodThatCameBeforeTheWithdrawalIsSeen) {
  mig::states::enable(hardware_.gpu(0));
  mig::states::enable(hardware_.gpu(1));
  ASSERT_NE(add(hardware_.gpu(0), "7g.80gb", 0), nullptr);
  const auto uuid = hardware_.state(0).instances[0].compute[0].uuid;
  want("all-1g.10gb");
  // Admitted while the GPU was being withdrawn.
  while (withdrawn_.empty()) loop_.advance(std::chrono::milliseconds(1));
  holders_ = std::map<DeviceId, std::string>{{DeviceId(uuid.str()), "default/late"}};
  loop_.advance(std::chrono::seconds(2));
  ASSERT_EQ(hardware_.state(0).instances.size(), 1u);
  EXPECT_EQ(hardware_.state(0).instances[0].compute[0].uuid, uuid);
  EXPECT_TRUE(withdrawn_.empty());
}

TEST_F(MigManagerTest, AnUnknownLayoutIsRefusedAndNothingTouched) {
  want("all-balancd");
  loop_.advance(std::chrono::minutes(3));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_EQ(states_, std::vector<std::string>{"failed"});
  ASSERT_EQ(events_.count("MigRefused"), 1u);
  EXPECT_NE(events_.said[0].second.find("all-balanced"), std::string::npos) << events_.said[0].second;
}

TEST_F(MigManagerTest, AFailedStepIsTriedAgain) {
  hardware_.fail_next = true;
  want("all-1g.10gb");
  loop_.advance(std::chrono::seconds(1));
  EXPECT_EQ(states_.back(), "failed");
  EXPECT_EQ(hardware_.state(1).instances.size(), 7u);
  loop_.advance(kMigBackoff.longest * 2);
  EXPECT_EQ(hardware_.state(0).instances.size(), 7u);
  EXPECT_EQ(states_.back(), "success");
}

TEST_F(MigManagerTest, WithoutTheKubeletsWordNothingIsTouched) {
  holders_ = fail(Code::kUnavailable, "no kubelet");
  want("all-1g.10gb");
  loop_.advance(std::chrono::seconds(5));
  EXPECT_TRUE(hardware_.applied.empty());
  EXPECT_EQ(states_.back(), "pending");
}

TEST_F(MigManagerTest, AnotherWishMeanwhileComesNext) {
  want("all-1g.10gb");
  while (hardware_.applied.empty()) loop_.advance(std::chrono::milliseconds(1));
  want("all-balanced");
  loop_.advance(std::chrono::seconds(5));
  EXPECT_EQ(hardware_.state(0).instances.size(), 4u);
  EXPECT_EQ(hardware_.state(1).instances.size(), 4u);
  EXPECT_EQ(states_.back(), "success");
}

}  // namespace
}  // namespace gpulet::agent
