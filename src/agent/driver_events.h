// The driver's events, kept flowing: makes an event set, registers every readable GPU with it, keeps one
// thread waiting, and starts again, with a growing pause, when the wait fails. Loop's thread only.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "agent/ports.h"
#include "base/backoff.h"
#include "nvml/events.h"
#include "nvml/worker.h"

namespace gpulet::agent {

// A wait that fails is begun again within these: one line in the log for all of it, and never a hot loop.
inline constexpr BackoffLimits kEventBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};

class DriverEvents {
 public:
  DriverEvents(Loop& loop, nvml::Worker& worker);
  ~DriverEvents();
  DriverEvents(const DriverEvents&) = delete;

  void set_handlers(Driver::Events handlers) { handlers_ = std::move(handlers); }
  const Driver::Events& handlers() const { return handlers_; }

  // Registers the readable ones of `gpus` that are not registered yet, and begins to wait once they are. Each
  // registration is a call of its own, with `deadline`. `settled` is called once, perhaps from inside, when
  // every event from then on is seen, or none will be for now.
  void watch(const std::shared_ptr<const nvml::Session>& session, const std::vector<inventory::Gpu>& gpus,
             Duration deadline, std::function<void()> settled);
  // Before the driver is opened anew. Forgets who waits for `settled`.
  void stop();

 private:
  struct Wanted {
    unsigned index = 0;
    DeviceUuid uuid;
  };
  struct Registration {
    nvml::Device device;
    std::uint64_t types = 0;
  };
  using SetPtr = std::shared_ptr<const nvml::EventSet>;

  void make_set();
  void on_set(Result<SetPtr> set);
  void register_missing();
  void register_one(const Wanted& gpu);
  void on_registered(const Wanted& gpu, const Result<Registration>& registered);
  void on_all_registered();
  void on_event(const nvml::Event& event);
  void tell(const DeviceUuid& gpu, health::Body body) const;
  void tell_source(const DeviceUuid& gpu, std::optional<std::string> absent) const;
  void on_works();
  void on_ended(const Error& error);
  void failed(const Error& error);
  void settle();
  void release_set();

  Loop& loop_;
  nvml::Worker& worker_;
  Driver::Events handlers_;

  std::weak_ptr<const nvml::Session> session_;
  std::vector<Wanted> wanted_;
  Duration deadline_{};

  SetPtr set_;
  std::unique_ptr<nvml::EventWaiter> waiter_;
  std::map<void*, DeviceUuid> sources_;  // by the handle that an event names
  std::set<DeviceUuid> registered_;  // or tried in vain; one that was unreadable since is registered again
  bool any_events_ = false;          // at least one GPU has some
  std::size_t registering_ = 0;
  bool making_set_ = false;
  std::vector<std::function<void()>> settling_;
  std::uint64_t round_ = 0;  // answers of an earlier round, before stop(), are not for us

  bool failing_ = false;
  Backoff backoff_;
  Subscription retry_;
};

}  // namespace gpulet::agent
