// A node in memory for the seeded simulation: a driver whose GPUs get lost, hang, throw XIDs and are
// replaced, and a kubelet that restarts, refuses, answers late or never and whose folder loses sockets. Both
// live on the ManualLoop that the agent lives on, so a seed replays the same hours every time.
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/ports.h"
#include "base/manual_loop.h"

namespace gpulet::seeded {

using Random = std::mt19937_64;

// How long the world takes for things; the invariants' bounds are made of these.
inline constexpr Duration kReadTime = std::chrono::milliseconds(3);
inline constexpr Duration kCallTimeout = std::chrono::seconds(2);
inline constexpr Duration kRegisterTimeout = std::chrono::seconds(5);
inline constexpr Duration kInotifyDelay = std::chrono::milliseconds(1);

class FakeDriver final : public agent::Driver {
 public:
  FakeDriver(ManualLoop& loop, std::size_t gpus);

  void open(std::function<void(Status)> done) override;
  void read(std::function<void(Result<inventory::Snapshot>)> done) override;
  void ask(DeviceUuid gpu, std::function<void(Evidence)> done) override;
  void poll(health::Scope scope, std::function<void(Evidence)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  struct FakeGpu {
    DeviceUuid uuid;
    bool lost = false;
    bool hangs = false;
    unsigned recovery_action = 0;  // 0: none
    Duration slow{};
  };
  std::vector<FakeGpu> gpus;
  bool loaded = true;

  // As an event, and none of a GPU that is gone.
  void xid(std::size_t gpu, std::uint64_t code);
  // Calls about each GPU that have not ended: never two, but of a GPU and its MIG devices.
  std::map<DeviceUuid, std::size_t> out;
  void replace(std::size_t gpu);
  void fail_event_wait();
  void reload_begins();
  void reload_ends() { loaded = true; }
  // No callback of the agent may come after it is gone: calls out then find their flag cleared.
  std::size_t calls = 0;

 private:
  inventory::Gpu describe(std::size_t index) const;
  Evidence answer(const DeviceUuid& gpu, Time asked) const;
  ManualLoop& loop_;
  Events events_;
  std::uint64_t generation_ = 0;
  std::uint64_t next_uuid_ = 0;
  std::vector<Subscription> pending_;
  void later(Duration delay, std::function<void()> task);
};

class FakeKubelet final : public agent::PluginHost {
 public:
  FakeKubelet(ManualLoop& loop, Random& random) : loop_(loop), random_(random) {}

  Status serve(kubelet::OfferPtr offer) override;
  void withdraw(const ResourceName& resource) override;
  void register_resource(const ResourceName& resource, std::function<void(Status)> done) override;
  void set_events(Events events) override { events_ = std::move(events); }

  enum class Mood { kAnswers, kRefuses, kLate, kNever };
  Mood mood = Mood::kAnswers;

  void stop();   // the kubelet ends: every stream ends with it
  void start();  // clears the folder as the real one does, then listens
  void delete_socket(const ResourceName& resource);
  void drop_stream(const ResourceName& resource);
  bool running() const { return running_; }
  // Whether it runs and answers, and has done so since it started: then nothing excuses a resource not
  // registered. One that refused or kept silent meanwhile is only found willing by the next try of a backoff.
  bool answers() const { return running_ && mood == Mood::kAnswers; }
  bool answers_since_start() const { return answers() && answered_since_start_; }
  void set_mood(Mood value);

  struct Endpoint {
    kubelet::OfferPtr offer;  // what the plugin serves
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
  std::uint64_t life_ = 0;  // of the kubelet: answers of an earlier one are lost
  bool answered_since_start_ = true;
  std::vector<Subscription> pending_;
};

class FakeReporter final : public agent::Reporter {
 public:
  void event(Severity, std::string_view reason, const std::string&) override {
    ++counts[std::string(reason)];
  }
  std::map<std::string, std::size_t> counts;
};

}  // namespace gpulet::seeded
