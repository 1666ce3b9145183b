#include "device_plugin/grpc_event_engine.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <absl/functional/any_invocable.h>
#include <absl/status/statusor.h>
#include <grpc/event_engine/event_engine.h>

#include "base/log.h"
#include "base/loop.h"

namespace gpulet::device_plugin {
namespace {

using grpc_event_engine::experimental::EndpointConfig;
using grpc_event_engine::experimental::EventEngine;
using grpc_event_engine::experimental::MemoryAllocator;
using grpc_event_engine::experimental::MemoryAllocatorFactory;
using Clock = std::chrono::steady_clock;

// Of the engine and its thread. The engine may be destroyed by one of its own closures, so neither waits for
// the other.
struct Timers {
  // When it is due, and a number that tells it from others of that time.
  using Key = std::pair<Clock::time_point, std::intptr_t>;

  std::mutex mutex;
  std::condition_variable changed;
  std::map<Key, absl::AnyInvocable<void()>> waiting;
  std::intptr_t last_number = 0;
  bool has_thread = false;
  bool ended = false;
};

thread_local const Timers* timers_of_this_thread = nullptr;

void run_timers(const std::shared_ptr<Timers>& timers) {
  timers_of_this_thread = timers.get();
  std::unique_lock lock(timers->mutex);
  while (!timers->ended) {
    if (timers->waiting.empty()) {
      timers->changed.wait(lock);
      continue;
    }
    const auto next = timers->waiting.begin();
    if (const auto due = next->first.first; due > Clock::now()) {
      timers->changed.wait_until(lock, due);
      continue;
    }
    auto closure = std::move(next->second);
    timers->waiting.erase(next);
    lock.unlock();
    closure();
    closure = nullptr;  // what it holds may be the engine
    lock.lock();
  }
}

class SleepingEventEngine final : public EventEngine {
 public:
  SleepingEventEngine() = default;
  ~SleepingEventEngine() override {
    const std::lock_guard lock(timers_->mutex);
    timers_->ended = true;
    timers_->changed.notify_one();
  }

  bool IsWorkerThread() override { return timers_of_this_thread == timers_.get(); }

  void Run(Closure* closure) override { RunAfter(Duration::zero(), closure); }
  void Run(absl::AnyInvocable<void()> closure) override { RunAfter(Duration::zero(), std::move(closure)); }
  TaskHandle RunAfter(Duration when, Closure* closure) override {
    return RunAfter(when, [closure] { closure->Run(); });
  }
  TaskHandle RunAfter(Duration when, absl::AnyInvocable<void()> closure) override {
    const std::lock_guard lock(timers_->mutex);
    if (!timers_->has_thread) start_thread();
    const Timers::Key key{Clock::now() + when, ++timers_->last_number};
    const auto added = timers_->waiting.emplace(key, std::move(closure)).first;
    if (added == timers_->waiting.begin()) timers_->changed.notify_one();
    return {{static_cast<std::intptr_t>(key.first.time_since_epoch().count()), key.second}};
  }
  bool Cancel(TaskHandle handle) override {
    const Timers::Key key{Clock::time_point(Clock::duration(handle.keys[0])), handle.keys[1]};
    absl::AnyInvocable<void()> cancelled;  // destroyed without the lock
    const std::lock_guard lock(timers_->mutex);
    const auto found = timers_->waiting.find(key);
    if (found == timers_->waiting.end()) return false;
    cancelled = std::move(found->second);
    timers_->waiting.erase(found);
    return true;
  }

  // Of later versions of gRPC.
  absl::StatusOr<std::unique_ptr<Listener>> CreateListener(Listener::AcceptCallback,
                                                           absl::AnyInvocable<void(absl::Status)>,
                                                           const EndpointConfig&,
                                                           std::unique_ptr<MemoryAllocatorFactory>) override {
    return absl::UnimplementedError("this engine has timers only");
  }
  ConnectionHandle Connect(OnConnectCallback on_connect, const ResolvedAddress&, const EndpointConfig&,
                           MemoryAllocator, Duration) override {
    Run([on_connect = std::move(on_connect)]() mutable {
      on_connect(absl::UnimplementedError("this engine has timers only"));
    });
    return {{-1, -1}};
  }
  bool CancelConnect(ConnectionHandle) override { return false; }
  std::unique_ptr<DNSResolver> GetDNSResolver(const DNSResolver::ResolverOptions&) override {
    return nullptr;
  }

 private:
  // Without a thread the closures wait, and the next one tries again.
  void start_thread() {
    const auto started = start_detached_thread("gRPC", [timers = timers_] { run_timers(timers); });
    timers_->has_thread = started.has_value();
    if (!started) log::warning("cannot start a thread", {{"error", started.error().full_message()}});
  }

  std::shared_ptr<Timers> timers_ = std::make_shared<Timers>();
};

}  // namespace

void use_sleeping_event_engine() {
  static const bool set = [] {
    grpc_event_engine::experimental::SetEventEngineFactory(
        [] { return std::make_unique<SleepingEventEngine>(); });
    return true;
  }();
  static_cast<void>(set);
}

}  // namespace gpulet::device_plugin
