// For tests of the MIG manager: two H100 on the simulator's state behind ports that answer a turn later, on a
// loop whose clock the test turns.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/mig_manager.h"
#include "base/manual_loop.h"
#include "mig/derive.h"
#include "mig/test_states.h"

namespace gpulet::agent {

class FakeHardware final : public MigHardware {
 public:
  explicit FakeHardware(ManualLoop& loop) : loop_(loop), machine_(mig::states::machine("hgx-h100")) {}

  void read(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) override {
    loop_.post([this, gpu, done = std::move(done)] {
      auto now = state(index_of(gpu));
      const auto held = processes.find(index_of(gpu));
      if (held != processes.end()) {
        now.holders.push_back(held->second);
        for (auto& instance : now.instances) instance.holders.push_back(held->second);
      }
      done(std::move(now));
    });
  }
  void apply(const DeviceUuid& gpu, const mig::Plan& plan,
             std::function<void(Result<MigApplied>)> done) override {
    applied.push_back(index_of(gpu));
    loop_.post([this, gpu, plan, done = std::move(done)] {
      if (on_apply) on_apply(index_of(gpu));
      if (fail_next) {
        fail_next = false;
        return done(fail(Code::kFailedPrecondition, "in use"));
      }
      auto& there = machine_->gpus[index_of(gpu)];
      if (plan.set_mode && modes_need_reset) {
        there.mig.pending = *plan.set_mode ? 1 : 0;
        return done(MigApplied{.needs_reset = true});
      }
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
  bool fail_next = false, modes_need_reset = false;
  std::map<std::size_t, std::string> processes;  // on everything of a GPU
  std::function<void(std::size_t gpu)> on_apply;

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

// Commands that leave a line each in `log`, and answer a turn later.
class FakeHooks final : public MigHooks {
 public:
  explicit FakeHooks(ManualLoop& loop) : loop_(loop) {}
  bool any() const override { return there; }
  void run(mig::HookPoint point, const About& about, std::function<void(Status)> done) override {
    log.push_back(std::string(mig::name(point)) + name_of(about));
    loop_.post([this, point, done = std::move(done)] {
      if (on_run) on_run(point);
      auto& failures = fail[point];
      if (failures == 0) return done({});
      --failures;
      done(gpulet::fail(Code::kFailedPrecondition, "hooks.yaml:4:7: /bin/false: exit code 1"));
    });
  }

  bool there = false;
  std::map<mig::HookPoint, unsigned> fail;  // so often
  std::function<void(mig::HookPoint)> on_run;
  std::function<std::string(const About&)> name_of = [](const About&) { return ""; };
  std::vector<std::string> log;

 private:
  ManualLoop& loop_;
};

// The API server's side of a drain: who is being asked, until the asking is ended.
class FakeApi {
 public:
  std::unique_ptr<cluster::Eviction> evict(std::vector<std::string> pods, cluster::Eviction::News news) {
    if (!there) return nullptr;
    asked.insert(asked.end(), pods.begin(), pods.end());
    return std::make_unique<Asking>(*this, std::move(news));
  }
  void tell(const cluster::EvictionNews& news) {
    for (const auto* asking : asking_) asking->news(news);
  }
  std::size_t under_way() const { return asking_.size(); }

  bool there = true;
  std::vector<std::string> asked;

 private:
  struct Asking final : cluster::Eviction {
    Asking(FakeApi& its_api, News its_news) : api(its_api), news(std::move(its_news)) {
      api.asking_.insert(this);
    }
    ~Asking() override { api.asking_.erase(this); }
    FakeApi& api;
    News news;
  };
  std::set<const Asking*> asking_;
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
             .tell_state = [this](auto state) { states_.emplace_back(state); },
             .hooks = &hooks_,
             .drains = [this] { return drains_; },
             .evict = [this](auto pods, auto news) { return api_.evict(std::move(pods), std::move(news)); }},
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

  // What holds all of a GPU, by its index.
  void hold(std::map<std::size_t, std::string> pods) {
    mig::Pods held;
    for (const auto& [gpu, pod] : pods) held[DeviceId(hardware_.state(gpu).uuid.str())] = pod;
    holders_ = std::move(held);
  }

  ManualLoop loop_;
  FakeHardware hardware_{loop_};
  Events events_;
  FakeHooks hooks_{loop_};
  FakeApi api_;
  bool drains_ = false;
  Result<mig::Pods> holders_ = mig::Pods{};
  std::map<DeviceUuid, std::string> withdrawn_, ever_withdrawn_;
  std::vector<std::string> states_;
  std::vector<MigWish> wishes_;
  MigManager manager_;
};

}  // namespace gpulet::agent
