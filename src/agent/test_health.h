// For tests of what follows the devices' health: a driver in memory whose GPUs answer as told, on a
// hand-turned clock.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "agent/health_memory.h"
#include "agent/ports.h"
#include "base/manual_loop.h"

namespace gpulet::agent {

class AnsweringDriver final : public Driver {
 public:
  explicit AnsweringDriver(Loop& loop) : loop_(loop) {}

  void open(std::function<void(Status)> done) override { done({}); }
  void read(std::function<void(Result<inventory::Snapshot>)> done) override { done(there); }
  void ask(DeviceUuid gpu, std::function<void(Evidence)> done) override {
    ++asked[gpu];
    answer({gpu}, std::move(done));
  }
  void poll(health::Scope scope, std::function<void(Evidence)> done) override {
    ++polled[scope];
    answer(scope, std::move(done));
  }
  void set_events(Events events) override { told = std::move(events); }

  // GPU-0, GPU-1, …; the last cut up into two where `mig`.
  static inventory::Snapshot node(unsigned count, bool mig = false) {
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

  inventory::Snapshot there;
  Events told;
  std::map<DeviceUuid, health::HandleReading> handle;  // what others than healthy ones answer
  std::map<DeviceUuid, unsigned> action;
  std::map<DeviceUuid, bool> hangs;  // never answered, until released
  std::map<DeviceUuid, std::size_t> asked;
  std::map<health::Scope, std::size_t> polled;
  std::size_t most_out = 0;  // calls about one device at once

  void release(const DeviceUuid& gpu) {
    hangs[gpu] = false;
    for (auto& task : std::exchange(held_[gpu], {})) loop_.post(std::move(task));
  }

 private:
  void answer(const health::Scope& scope, std::function<void(Evidence)> done) {
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
    if (!scope.whole()) return {{scope, at, health::ProcessReading{0}}};
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

// What would be on disk.
class MemoryInMemory final : public HealthMemory {
 public:
  explicit MemoryInMemory(Loop& loop) : loop_(loop) {}
  Result<health::Saved> read() override {
    if (failure) return fail(*failure);
    return saved;
  }
  void write(const health::Saved& now, std::function<void(Status)> done) override {
    ++writes;
    const Status status = failure ? Status(fail(*failure)) : Status();
    if (status) saved = now;
    loop_.post([done = std::move(done), status] { done(status); });
  }
  Status write_now(const health::Saved& now) override {
    ++writes;
    saved = now;
    return {};
  }
  std::string boot_id() override { return boot; }

  health::Saved saved;
  std::optional<Error> failure;
  std::string boot = "boot-1";
  std::size_t writes = 0;

 private:
  Loop& loop_;
};

}  // namespace gpulet::agent
