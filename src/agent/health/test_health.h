// For tests of the health controllers: a driver in memory with configurable answers, on a manual clock.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "agent/health/health_store.h"
#include "agent/node/ports.h"
#include "base/loop.h"

namespace gpulet::agent {

class FakeHealthDriver final : public Driver {
 public:
  explicit FakeHealthDriver(Loop& loop) : loop_(loop) {}

  void open_driver(std::function<void(Status)> done) override { done({}); }
  void close_driver(std::function<void(Status)> done) override { done({}); }
  void read_snapshot(std::function<void(Result<inventory::Snapshot>)> done) override { done(current); }
  void probe_gpu(DeviceUuid gpu, std::function<void(Evidence)> done) override {
    ++asked[gpu];
    send_evidence({gpu}, std::move(done));
  }
  void poll_device(health::Scope scope, std::function<void(Evidence)> done) override {
    ++polled[scope];
    send_evidence(scope, std::move(done));
  }
  void set_events(Events handlers) override { events = std::move(handlers); }

  // GPU-0, GPU-1, …; with `mig` the last has two MIG devices.
  static inventory::Snapshot snapshot_of_gpus(unsigned count, bool mig = false) {
    inventory::Snapshot snapshot;
    snapshot.driver.version = "570.124.06";
    for (unsigned i = 0; i < count; ++i) {
      inventory::Gpu gpu;
      gpu.index = i;
      gpu.uuid = DeviceUuid("GPU-" + std::to_string(i));
      gpu.pci = {0, 0x10 + i, 0, 0};
      snapshot.gpus.push_back(gpu);
    }
    if (!mig) return snapshot;
    auto& cut = snapshot.gpus.back();
    cut.mig_enabled = true;
    for (unsigned i = 0; i < 2; ++i) {
      inventory::MigDevice device;
      device.index = i;
      device.gpu_instance = i + 1;
      device.compute_instance = 0;
      device.uuid = DeviceUuid("MIG-" + std::to_string(i));
      cut.mig_devices.push_back(device);
    }
    return snapshot;
  }

  inventory::Snapshot current;
  Events events;
  std::map<DeviceUuid, health::HandleReading> handle;  // of GPUs that are not healthy
  std::map<DeviceUuid, unsigned> action;
  std::map<DeviceUuid, bool> hangs;  // no answer until released
  std::map<DeviceUuid, std::size_t> asked;
  std::map<health::Scope, std::size_t> polled;
  std::size_t most_out = 0;  // the most concurrent calls for one device

  void release_calls(const DeviceUuid& gpu) {
    hangs[gpu] = false;
    for (auto& task : std::exchange(held_[gpu], {})) loop_.post(std::move(task));
  }

 private:
  void send_evidence(const health::Scope& scope, std::function<void(Evidence)> done) {
    most_out = std::max(most_out, ++out_[scope]);
    auto task = [this, scope, at = loop_.now(), done = std::move(done)] {
      --out_[scope];
      done(evidence(scope, at));
    };
    if (hangs[scope.gpu]) {
      held_[scope.gpu].push_back(std::move(task));
    } else {
      loop_.post(std::move(task));
    }
  }
  Evidence evidence(const health::Scope& scope, Time at) {
    if (!scope.is_whole_gpu()) return {{scope, at, health::ProcessReading{0}}};
    if (const auto bad = handle.find(scope.gpu); bad != handle.end()) return {{scope, at, bad->second}};
    return {{scope, at, health::HandleReading{}},
            {scope, at, health::RecoveryActionReading{action[scope.gpu]}},
            {scope, at, health::RowRemapReading{}},
            {scope, at, health::EccReading{}},
            {scope, at, health::SourceNotice{health::Source::kFabric, "it has none"}}};
  }

  Loop& loop_;
  std::map<health::Scope, std::size_t> out_;
  std::map<DeviceUuid, std::deque<std::function<void()>>> held_;
};

// In place of the state file.
class FakeHealthStore final : public HealthStore {
 public:
  explicit FakeHealthStore(Loop& loop) : loop_(loop) {}
  Result<health::PersistedState> load_state() override {
    if (failure) return fail(*failure);
    return saved;
  }
  void save_state(const health::PersistedState& now, std::function<void(Status)> done) override {
    ++writes;
    const Status status = failure ? Status(fail(*failure)) : Status();
    if (status) saved = now;
    loop_.post([done = std::move(done), status] { done(status); });
  }
  Status save_state_now(const health::PersistedState& now) override {
    ++writes;
    saved = now;
    return {};
  }
  std::string current_boot_id() override { return boot; }

  health::PersistedState saved;
  std::optional<Error> failure;
  std::string boot = "boot-1";
  std::size_t writes = 0;

 private:
  Loop& loop_;
};

}  // namespace gpulet::agent
