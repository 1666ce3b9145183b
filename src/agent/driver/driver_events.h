// Receives the driver's events: creates an event set, registers every readable GPU with it, keeps one thread
// waiting, and retries with backoff when the wait fails. Loop's thread only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "agent/node/ports.h"
#include "base/loop.h"
#include "nvml/events.h"
#include "nvml/worker.h"

namespace gpulet::agent {

// How a failed wait is retried; all retries are logged once.
inline constexpr BackoffLimits kEventBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};

class DriverEvents {
 public:
  DriverEvents(Loop& loop, nvml::Worker& worker);
  ~DriverEvents();
  DriverEvents(const DriverEvents&) = delete;

  void set_handlers(Driver::Events handlers) { handlers_ = std::move(handlers); }
  const Driver::Events& handlers() const { return handlers_; }

  // Registers those of `gpus` that are readable and not registered yet, then starts to wait. Each
  // registration is one driver call with `deadline`. `settled` is called once, possibly from inside, when all
  // events from then on are received, or none will be for now.
  void watch_gpus(const std::shared_ptr<const nvml::Session>& session,
                  const std::vector<inventory::Gpu>& gpus, Duration deadline, std::function<void()> settled);
  // Call it before the driver is opened again. Pending `settled` callbacks are dropped.
  void stop_events();

 private:
  struct Target {
    unsigned index = 0;
    DeviceUuid uuid;
  };
  struct EventRegistration {
    nvml::Device device;
    std::uint64_t types = 0;
  };
  using SetPtr = std::shared_ptr<const nvml::EventSet>;

  void make_set();
  void on_set(Result<SetPtr> set);
  void register_missing();
  void register_one(const Target& gpu);
  void on_registered(const Target& gpu, const Result<EventRegistration>& registered);
  void on_all_registered();
  void on_event(const nvml::Event& event);
  void emit_evidence(const DeviceUuid& gpu, health::EvidenceBody body) const;
  void emit_source_status(const DeviceUuid& gpu, std::optional<std::string> absent) const;
  void on_wait_recovered();
  void on_ended(const Error& error);
  void on_wait_failed(const Error& error);
  void notify_settled();
  void release_set();

  Loop& loop_;
  nvml::Worker& worker_;
  Driver::Events handlers_;

  std::weak_ptr<const nvml::Session> session_;
  std::vector<Target> targets_;
  Duration deadline_{};

  SetPtr set_;
  std::unique_ptr<nvml::EventWaiter> waiter_;
  std::map<void*, DeviceUuid> sources_;  // by the handle that an event names
  std::set<DeviceUuid> registered_;      // also those that failed; one that was unreadable since is retried
  bool any_events_ = false;              // at least one GPU has some
  std::size_t registering_ = 0;
  bool making_set_ = false;
  std::vector<std::function<void()>> settled_callbacks_;
  std::uint64_t round_ = 0;  // results of an earlier round, before stop_events(), are ignored

  bool failing_ = false;
  bool unload_reported_ = false;  // since a wait last succeeded
  Backoff backoff_;
  Subscription retry_;
};

}  // namespace gpulet::agent
