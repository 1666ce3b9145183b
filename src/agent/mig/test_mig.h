// For tests of the MIG manager: two simulated H100 GPUs behind ports that answer on the next turn of a manual
// loop.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "agent/mig/mig_manager.h"
#include "base/loop.h"
#include "mig/layout.h"
#include "mig/test_states.h"

namespace gpulet::agent {

class FakeHardware final : public MigHardware {
 public:
  explicit FakeHardware(ManualLoop& loop) : loop_(loop), machine_(mig::states::test_machine("hgx-h100")) {}

  void read_mig_state(const DeviceUuid& gpu, std::function<void(Result<mig::State>)> done) override {
    loop_.post([this, gpu, done = std::move(done)] {
      auto now = mig_state(index_of_gpu(gpu));
      const auto held = processes.find(index_of_gpu(gpu));
      if (held != processes.end()) {
        now.holders.push_back(held->second);
        for (auto& instance : now.instances) instance.holders.push_back(held->second);
      }
      done(std::move(now));
    });
  }
  void apply_mig_plan(const DeviceUuid& gpu, const mig::Plan& plan,
                      std::function<void(Result<MigApplied>)> done) override {
    applied.push_back(index_of_gpu(gpu));
    loop_.post([this, gpu, plan, done = std::move(done)] {
      if (on_apply) on_apply(index_of_gpu(gpu));
      if (fail_next) {
        fail_next = false;
        return done(fail(Code::kFailedPrecondition, "in use"));
      }
      auto& there = machine_->gpus[index_of_gpu(gpu)];
      const bool changes_mode = plan.set_mode && *plan.set_mode != (there.mig.current != 0);
      if (changes_mode && (modes_need_reset || monitors)) {
        there.mig.pending = *plan.set_mode ? 1 : 0;
        return done(MigApplied{.needs_reset = true,
                               .in_use = !modes_need_reset,
                               .holders = monitors.value_or(std::vector<mig::DeviceHolder>{})});
      }
      if (plan.set_mode) mig::states::set_mig_mode(there, *plan.set_mode);
      EXPECT_EQ(mig::states::carry_out(there, plan), "");
      done(MigApplied{});
    });
  }
  mig::State mig_state(std::size_t index) const {
    return mig::states::state_of(machine_->gpus[index], static_cast<unsigned>(index));
  }
  sim::Gpu& sim_gpu(std::size_t index) { return machine_->gpus[index]; }
  inventory::SnapshotPtr make_snapshot() const {
    auto made = std::make_shared<inventory::Snapshot>();
    for (unsigned i = 0; i < 2; ++i) {
      const auto now = mig_state(i);
      inventory::Gpu one;
      one.index = i;
      one.uuid = now.uuid;
      one.mig_capable = true;
      one.mig_enabled = now.enabled;
      one.mig_pending = now.pending;
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
  // Clients of the driver that keep a mode pending: those that are known.
  std::optional<std::vector<mig::DeviceHolder>> monitors;
  std::map<std::size_t, std::string> processes;  // on all of a GPU
  std::function<void(std::size_t gpu)> on_apply;

 private:
  std::size_t index_of_gpu(const DeviceUuid& gpu) const { return gpu == mig_state(0).uuid ? 0 : 1; }
  ManualLoop& loop_;
  std::unique_ptr<sim::Machine> machine_;
};

class RecordedEvents final : public Reporter {
 public:
  void report_event(Severity, std::string_view reason, const std::string& message) override {
    recorded.emplace_back(std::string(reason), message);
  }
  std::size_t count_events(const std::string& reason) const {
    return static_cast<std::size_t>(
        std::ranges::count(recorded, reason, [](const auto& entry) { return entry.first; }));
  }
  std::vector<std::pair<std::string, std::string>> recorded;
};

// Records each command in `log`, and answers on the next turn.
class FakeHooks final : public MigHooks {
 public:
  explicit FakeHooks(ManualLoop& loop) : loop_(loop) {}
  bool are_configured() const override { return configured; }
  void run_hooks(mig::HookPoint point, const HookSubject& about, std::function<void(Status)> done) override {
    log.push_back(std::string(mig::hook_point_name(point)) + name_of(about));
    loop_.post([this, point, done = std::move(done)] {
      if (on_run) on_run(point);
      auto& failures = fail[point];
      if (failures == 0) return done({});
      --failures;
      done(gpulet::fail(Code::kFailedPrecondition, "hooks.yaml:4:7: /bin/false: exit code 1"));
    });
  }

  bool configured = false;
  std::map<mig::HookPoint, unsigned> fail;  // number of failures
  std::function<void(mig::HookPoint)> on_run;
  std::function<std::string(const HookSubject&)> name_of = [](const HookSubject&) { return ""; };
  std::vector<std::string> log;

 private:
  ManualLoop& loop_;
};

// The API server's side of a drain: the Pods whose evictions are pending.
class FakeApi {
 public:
  std::unique_ptr<k8s::Eviction> evict(std::vector<std::string> pods,
                                       k8s::Eviction::UpdateCallback on_update) {
    if (!reachable) return nullptr;
    requested.insert(requested.end(), pods.begin(), pods.end());
    return std::make_unique<FakeEviction>(*this, std::move(on_update));
  }
  void send_event(const k8s::EvictionUpdate& update) {
    for (const auto* asking : pending_) asking->on_update(update);
  }
  std::size_t under_way() const { return pending_.size(); }

  bool reachable = true;
  std::vector<std::string> requested;

 private:
  struct FakeEviction final : k8s::Eviction {
    FakeEviction(FakeApi& its_api, UpdateCallback its_on_update)
        : api(its_api), on_update(std::move(its_on_update)) {
      api.pending_.insert(this);
    }
    ~FakeEviction() override { api.pending_.erase(this); }
    FakeApi& api;
    UpdateCallback on_update;
  };
  std::set<const FakeEviction*> pending_;
};

class MigManagerTest : public testing::Test {
 protected:
  MigManagerTest() { manager_.emplace(make_ports(), 1); }

  MigPorts make_ports() {
    return {.loop = loop_,
            .hardware = hardware_,
            .reporter = events_,
            .pods = [this](auto done) { loop_.post([this, done = std::move(done)] { done(holders_); }); },
            .layouts = [](const auto& name, auto gpus) { return mig::derived_layouts(name, gpus); },
            .withdraw =
                [this](auto gpus) {
                  withdrawn_ = std::move(gpus);
                  ever_withdrawn_.merge(std::map(withdrawn_));
                },
            .request_snapshot = [this] { update_manager(); },
            .publish_state = [this](auto state) { states_.emplace_back(state); },
            .hooks = &hooks_,
            .is_drain_enabled = [this] { return drains_; },
            .evict = [this](auto pods,
                            auto on_update) { return api_.evict(std::move(pods), std::move(on_update)); },
            .watch_exit = [this](unsigned pid, auto ended) -> Subscription {
              if (!watchable_) return {};
              const auto added = exits_.emplace(pid, std::move(ended));
              return Subscription([this, added] { exits_.erase(added); });
            }};
  }
  void end_process(unsigned pid) {
    std::vector<std::function<void()>> ended;
    const auto [from, to] = exits_.equal_range(pid);
    for (auto one = from; one != to; ++one) ended.push_back(one->second);
    for (const auto& callback : ended) callback();
  }

  void set_label(const std::string& layout) {
    targets_.clear();
    for (std::size_t i = 0; i < 2; ++i) {
      targets_.push_back(
          {hardware_.mig_state(i).uuid, layout, std::nullopt, "the label mig.config=" + layout, true});
    }
    update_manager();
  }
  void update_manager() { manager_->set_targets(targets_, hardware_.make_snapshot()); }
  // Another agent after this one was killed.
  void restart_manager() {
    manager_.emplace(make_ports(), 2);
    withdrawn_.clear();
    update_manager();
  }
  std::string layout_text(std::size_t gpu) const {
    return mig::layout_text(mig::current_layout(hardware_.mig_state(gpu)));
  }

  // Pods that hold a whole GPU, by its index.
  void hold_gpus(std::map<std::size_t, std::string> pods) {
    mig::PodsByDevice held;
    for (const auto& [gpu, pod] : pods) held[DeviceId(hardware_.mig_state(gpu).uuid.str())] = pod;
    holders_ = std::move(held);
  }

  ManualLoop loop_;
  FakeHardware hardware_{loop_};
  RecordedEvents events_;
  FakeHooks hooks_{loop_};
  FakeApi api_;
  bool drains_ = false, watchable_ = true;
  std::multimap<unsigned, std::function<void()>> exits_;  // of watched processes
  Result<mig::PodsByDevice> holders_ = mig::PodsByDevice{};
  std::map<DeviceUuid, std::string> withdrawn_, ever_withdrawn_;
  std::vector<std::string> states_;
  std::vector<MigTarget> targets_;
  std::optional<MigManager> manager_;
};

}  // namespace gpulet::agent
