// Kubernetes events: what an operator sees in `kubectl describe node`, and the owner of a Pod in `kubectl
// describe pod`. Sent to the API server from inside the cluster (service account token and CA), by a client
// without a thread on the agent's loop.
//
// An event about a Node is created in the namespace "default" (the API server refuses another one for an
// object without a namespace), one about a Pod in the Pod's, so the agent needs create and patch on events
// there, or in all namespaces.
// Source: Kubernetes API core/v1 Event; how the kubelet names a Node in its own events (uid is the node's
// name).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"
#include "cluster/pod_ref.h"

namespace gpulet::cluster {

struct Event {
  bool warning = false;
  std::string reason;   // CamelCase
  std::string message;  // one line; longer than kMaxMessageBytes is cut
  std::optional<PodRef> pod{};  // whom it is about; nullopt: the node
};

inline constexpr std::size_t kMaxQueued = 256;
inline constexpr std::size_t kMaxRemembered = 256;  // of the last window, that a repeat may join
inline constexpr std::size_t kMaxMessageBytes = 1024;

struct EventTiming {
  Duration repeat_window = std::chrono::minutes(10);  // equal events within it are one, with a count
  Duration repeat_delay = std::chrono::seconds(5);    // repeats in a burst are told once, this long after the first
  BackoffLimits backoff{std::chrono::seconds(1), std::chrono::seconds(60)};
  Duration request_limit = std::chrono::seconds(10);  // for one request, from connecting to the last byte
};

class EventSender {
 public:
  static std::unique_ptr<EventSender> start(Loop& loop, Access access, EventTiming timing = {});
  virtual ~EventSender() = default;

  // Queues an event. Never blocks; at most kMaxQueued wait, the oldest are dropped and
  // counted; equal ones within the repeat window become one with a count. Tries again until the API server
  // has taken it or says that it never will (which is logged, and counts as dropped). Loop's thread only.
  virtual void send(Event event) = 0;

  virtual std::uint64_t sent() const = 0;      // requests that the API server took
  virtual std::uint64_t dropped() const = 0;   // events that it will never see
  virtual std::size_t waiting() const = 0;
  // Events that a repeat may still join: at most kMaxRemembered, and none that nothing repeated within the
  // repeat window.
  virtual std::size_t remembered() const = 0;
};

}  // namespace gpulet::cluster
