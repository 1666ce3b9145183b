// Registers one resource with the kubelet, with backoff, and again whenever the kubelet starts, our socket is
// recreated, or the kubelet ends its ListAndWatch.
//
// The kubelet opens ListAndWatch after an accepted Register and drops the resource when that stream ends. It
// never reopens it, so a stream that ends, or does not start within kWatchTimeout, means registering again.
// Source: kubelet device manager. A plugin that waits 30 s for that leaves the node without devices.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/node/ports.h"
#include "base/loop.h"

namespace gpulet::agent {

inline constexpr BackoffLimits kRegisterBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};
inline constexpr Duration kWatchTimeout = std::chrono::seconds(5);

// Loop's thread only.
class Registration {
 public:
  // `registered` is called for each success, `failed` for the first failure in a row.
  struct Callbacks {
    std::function<void()> registered;
    std::function<void(const Error&)> failed;
  };
  Registration(Loop& loop, PluginHost& host, ResourceName resource, std::uint64_t seed, Callbacks callbacks);

  // Registers at once; an attempt in progress is dropped.
  void register_now();
  void on_watched(bool watched);

  bool registered() const { return registered_; }
  bool watched() const { return watched_; }
  // Why the last attempt failed; none after a success or before the first attempt.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  void attempt();
  void on_finished(const Status& status);
  void schedule_retry();

  Loop& loop_;
  PluginHost& host_;
  ResourceName resource_;
  Backoff backoff_;
  Callbacks callbacks_;
  bool in_flight_ = false;
  std::uint64_t attempts_ = 0;
  bool registered_ = false;
  bool watched_ = false;
  std::optional<Error> last_error_;
  Subscription timer_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
