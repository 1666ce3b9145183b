// One resource's way to the kubelet: registers it, tries again with backoff while that fails, and does so
// anew whenever the kubelet started, our socket was recreated, or the kubelet left its ListAndWatch.
//
// The kubelet opens ListAndWatch after an accepted Register and drops the resource when that stream ends; it
// never comes back by itself. So a stream that ended, or that did not come within kWatchTimeout, means
// registering again. Source: kubelet device manager (facts/device-plugin 2); the limits are the issue of a
// plugin that waits 30 s.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/ports.h"
#include "base/backoff.h"

namespace gpulet::agent {

inline constexpr BackoffLimits kRegisterBackoff{std::chrono::milliseconds(100), std::chrono::seconds(10)};
inline constexpr Duration kWatchTimeout = std::chrono::seconds(5);

// Loop's thread only.
class Registration {
 public:
  // `registered` is told of each success, `failed` of the first failure in a row.
  struct Told {
    std::function<void()> registered;
    std::function<void(const Error&)> failed;
  };
  Registration(Loop& loop, PluginHost& host, ResourceName resource, std::uint64_t seed, Told told);

  // Registers at once; a try under way no longer counts.
  void start();
  void on_watched(bool watched);

  bool registered() const { return registered_; }
  bool watched() const { return watched_; }
  // Why the last try failed; none after a success or before the first try.
  const std::optional<Error>& last_error() const { return last_error_; }

 private:
  void attempt();
  void finished(const Status& status);
  void retry_later();

  Loop& loop_;
  PluginHost& host_;
  ResourceName resource_;
  Backoff backoff_;
  Told told_;
  bool in_flight_ = false;
  std::uint64_t attempts_ = 0;
  bool registered_ = false;
  bool watched_ = false;
  std::optional<Error> last_error_;
  Subscription timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // outlived by no callback
};

}  // namespace gpulet::agent
