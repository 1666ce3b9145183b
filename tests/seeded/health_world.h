// A simulated node for the storm of faults: eight GPUs, half of them with MIG devices, that get lost, hang
// and need a reset; and a kubelet that always responds and reports at once what it is offered. Both run on
// the agent's ManualLoop, so a seed always replays the same minutes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/node/ports.h"
#include "base/loop.h"
#include "health/evidence/evidence.h"

namespace gpulet::seeded {

inline constexpr std::size_t kStormGpus = 8, kWholeGpus = 4;
inline constexpr Duration kAnswerTime = std::chrono::milliseconds(3);
inline constexpr Duration kAbandonedAfter = std::chrono::seconds(2);  // for a hanging call

class FaultyDriver final : public agent::Driver {
 public:
  explicit FaultyDriver(ManualLoop& loop);

  void open_driver(std::function<void(Status)> done) override;
  void close_driver(std::function<void(Status)> done) override {
    later(kAnswerTime, [done = std::move(done)] { done({}); });
  }
  void read_snapshot(std::function<void(Result<inventory::Snapshot>)> done) override;
  void probe_gpu(DeviceUuid gpu, std::function<void(Evidence)> done) override;
  void poll_device(health::Scope scope, std::function<void(Evidence)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  struct FaultyGpu {
    inventory::Gpu is;  // as read without a fault
    bool lost = false, hangs = false;
    unsigned recovery_action = 0;  // NVML field 230
    bool silent() const { return lost || hangs; }
  };
  std::vector<FaultyGpu> gpus;
  // Sends an event about it.
  void emit_evidence(const health::Scope& scope, health::EvidenceBody body);
  void fail_event_wait();

 private:
  void later(Duration delay, std::function<void()> task);
  FaultyGpu* find(const DeviceUuid& uuid);
  Duration answer_time(const DeviceUuid& uuid);
  // The evidence now for a probe started at that time: a HandleReading and the current state.
  Evidence complete_probe(const health::Scope& scope, Time started_at, bool everything);

  ManualLoop& loop_;
  Events events_;
  std::uint64_t generation_ = 0;
  std::vector<Subscription> pending_;
};

// What the kubelet sees per device; the shares of a device count as one.
class RecordingKubelet final : public agent::PluginHost {
 public:
  using Observer = std::function<void(const std::string& uuid, bool healthy)>;
  RecordingKubelet(ManualLoop& loop, Observer seen) : loop_(loop), observer_(std::move(seen)) {}

  // Calls the observer for each device whose health differs; a new device counts as healthy before. An update
  // without a difference fails the test.
  Status serve_offer(device_plugin::OfferPtr offer) override;
  void withdraw(const ResourceName& resource) override { offers_.erase(resource); }
  void register_resource(const ResourceName& resource, std::function<void(Status)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  const std::map<std::string, bool>& devices_of() const { return devices_; }

 private:
  ManualLoop& loop_;
  Observer observer_;
  Events events_;
  std::map<ResourceName, device_plugin::OfferPtr> offers_;
  std::map<std::string, bool> devices_;  // UUID → healthy
  std::vector<Subscription> pending_;
};

}  // namespace gpulet::seeded
