// A simulated node for the seeded tests: a driver whose GPUs get lost, hang, raise XIDs and are replaced, and
// a kubelet that restarts, rejects, responds late or never, and whose directory loses sockets. Both run on
// the agent's ManualLoop, so a seed always replays the same hours.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/node/ports.h"
#include "base/loop.h"

namespace gpulet::seeded {

using Random = std::mt19937_64;

// Durations of the simulated node; the bounds of the invariants are derived from them.
inline constexpr Duration kReadTime = std::chrono::milliseconds(3);
inline constexpr Duration kCallTimeout = std::chrono::seconds(2);
inline constexpr Duration kRegisterTimeout = std::chrono::seconds(5);
inline constexpr Duration kInotifyDelay = std::chrono::milliseconds(1);

class FakeDriver final : public agent::Driver {
 public:
  FakeDriver(ManualLoop& loop, std::size_t gpus);

  void open_driver(std::function<void(Status)> done) override;
  void close_driver(std::function<void(Status)> done) override;
  void read_snapshot(std::function<void(Result<inventory::Snapshot>)> done) override;
  void probe_gpu(DeviceUuid gpu, std::function<void(Evidence)> done) override;
  void poll_device(health::Scope scope, std::function<void(Evidence)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  struct FakeGpu {
    DeviceUuid uuid;
    bool lost = false;
    bool hangs = false;
    unsigned recovery_action = 0;  // 0: none
    Duration slow{};
    std::optional<bool> display{};
  };
  std::vector<FakeGpu> gpus;
  bool loaded = true;
  bool closed = false;  // by close_driver()

  // Sent as an event; none for a GPU that is gone.
  void raise_xid(std::size_t gpu, std::uint64_t code);
  // Pending calls per GPU: never two, except of a GPU and its MIG devices.
  std::map<DeviceUuid, std::size_t> out;
  void replace(std::size_t gpu);
  void fail_event_wait();
  void reload_begins();
  void reload_ends() { loaded = true; }
  // No callback may reach the agent after its end: pending calls then find their flag cleared.
  std::size_t calls = 0;

 private:
  inventory::Gpu gpu_of(std::size_t index) const;
  Evidence complete_probe(const DeviceUuid& gpu, Time started_at) const;
  ManualLoop& loop_;
  Events events_;
  std::uint64_t generation_ = 0;
  std::uint64_t next_uuid_ = 0;
  std::vector<Subscription> pending_;
  using ReadDone = std::function<void(Result<inventory::Snapshot>)>;
  std::map<std::uint64_t, ReadDone> reads_;  // in progress, by number
  std::uint64_t next_read_ = 0;
  void later(Duration delay, std::function<void()> task);
  Result<inventory::Snapshot> snapshot_now();
};

class FakeKubelet final : public agent::PluginHost {
 public:
  FakeKubelet(ManualLoop& loop, Random& random) : loop_(loop), random_(random) {}

  Status serve_offer(device_plugin::OfferPtr offer) override;
  void withdraw(const ResourceName& resource) override;
  void register_resource(const ResourceName& resource, std::function<void(Status)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  enum class Behaviour { kAnswers, kRefuses, kLate, kNever };
  Behaviour behaviour = Behaviour::kAnswers;

  void stop_kubelet();   // every stream ends
  void start_kubelet();  // clears the directory as the real one does, then listens
  void delete_socket(const ResourceName& resource);
  void drop_stream(const ResourceName& resource);
  bool running() const { return running_; }
  // Whether it runs and has accepted registrations since its start: then every resource must be registered. A
  // kubelet that rejected or did not respond in between is only reached by the next attempt of a backoff.
  bool accepts() const { return running_ && behaviour == Behaviour::kAnswers; }
  bool answers_since_start() const { return accepts() && answered_since_start_; }
  void set_behaviour(Behaviour value);

  struct Endpoint {
    device_plugin::OfferPtr offer;  // what the plugin serves
    bool socket = false;
    bool watched = false;  // the kubelet has a stream: it sees `offer`
    bool late = false;
  };
  const std::map<ResourceName, Endpoint>& endpoints() const { return endpoints_; }

 private:
  void later(Duration delay, std::function<void()> task);
  void lose_socket(const ResourceName& resource);
  void end_stream(const ResourceName& resource, Endpoint& endpoint);
  ManualLoop& loop_;
  Random& random_;
  Events events_;
  std::map<ResourceName, Endpoint> endpoints_;
  bool running_ = true;
  std::uint64_t life_ = 0;  // of the kubelet: responses of an earlier one are lost
  bool answered_since_start_ = true;
  std::vector<Subscription> pending_;
};

class FakeReporter final : public agent::Reporter {
 public:
  void report_event(Severity, std::string_view reason, const std::string&) override {
    ++counts[std::string(reason)];
  }
  std::map<std::string, std::size_t> counts;
};

}  // namespace gpulet::seeded
