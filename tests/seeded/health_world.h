// A node in memory for the storm of faults: eight GPUs, half of them cut up into MIG devices, that get lost,
// hang and want a reset; and a kubelet that always answers and tells at once what it is offered. Both live on
// the ManualLoop that the agent lives on, so a seed replays the same minutes every time.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/ports.h"
#include "base/manual_loop.h"
#include "health/evidence.h"

namespace gpulet::seeded {

inline constexpr std::size_t kStormGpus = 8, kWholeGpus = 4;
inline constexpr Duration kAnswerTime = std::chrono::milliseconds(3);
inline constexpr Duration kGivenUp = std::chrono::seconds(2);  // on a call that hangs

class SickDriver final : public agent::Driver {
 public:
  explicit SickDriver(ManualLoop& loop);

  void open(std::function<void(Status)> done) override;
  void read(std::function<void(Result<inventory::Snapshot>)> done) override;
  void ask(DeviceUuid gpu, std::function<void(Evidence)> done) override;
  void poll(health::Scope scope, std::function<void(Evidence)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  struct SickGpu {
    inventory::Gpu is;  // as it is read when nothing is wrong
    bool lost = false, hangs = false;
    unsigned recovery_action = 0;  // NVML field 230
    bool silent() const { return lost || hangs; }
  };
  std::vector<SickGpu> gpus;
  // An event about it, now.
  void tell(const health::Scope& scope, health::Body body);
  void fail_event_wait();

 private:
  void later(Duration delay, std::function<void()> task);
  SickGpu* find(const DeviceUuid& uuid);
  Duration answer_time(const DeviceUuid& uuid);
  // What it answers now to a question of then: a HandleReading, and what its truth adds.
  Evidence answer(const health::Scope& scope, Time asked, bool everything);

  ManualLoop& loop_;
  Events events_;
  std::uint64_t generation_ = 0;
  std::vector<Subscription> pending_;
};

// What the kubelet sees, device by device: shares of one are one.
class SeeingKubelet final : public agent::PluginHost {
 public:
  using Seen = std::function<void(const std::string& uuid, bool healthy)>;
  SeeingKubelet(ManualLoop& loop, Seen seen) : loop_(loop), seen_(std::move(seen)) {}

  // Calls `seen` for each device whose health differs; one that is new here was healthy. What is the same as
  // before fails the test: the kubelet is told once.
  Status serve(kubelet::OfferPtr offer) override;
  void withdraw(const ResourceName& resource) override { offers_.erase(resource); }
  void register_resource(const ResourceName& resource, std::function<void(Status)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  const std::map<std::string, bool>& devices() const { return devices_; }

 private:
  ManualLoop& loop_;
  Seen seen_;
  Events events_;
  std::map<ResourceName, kubelet::OfferPtr> offers_;
  std::map<std::string, bool> devices_;  // UUID → healthy
  std::vector<Subscription> pending_;
};

}  // namespace gpulet::seeded
