// Records Kubernetes events, which `kubectl describe node` shows to operators and `kubectl describe pod` to
// the owners of Pods.
//
// An event about a Node is created in the namespace "default" (the API server rejects another one for an
// object without a namespace), one about a Pod in the Pod's. The agent needs create and patch on events
// there, or in all namespaces. Source: Kubernetes API core/v1 Event; the kubelet's own events about a Node
// (their uid is the node's name).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"

namespace gpulet::k8s {

struct Event {
  bool warning = false;
  std::string reason;           // CamelCase
  std::string message;          // one line; longer than kMaxMessageBytes is cut
  std::optional<PodRef> pod{};  // the Pod it is about; nullopt: the node
};

inline constexpr std::size_t kMaxQueued = 256;
inline constexpr std::size_t kMaxRemembered = 256;  // events that a repeat can still join
inline constexpr std::size_t kMaxMessageBytes = 1024;

struct EventTiming {
  Duration repeat_window = std::chrono::minutes(10);  // equal events within it become one with a count
  Duration repeat_delay =
      std::chrono::seconds(5);  // a burst of repeats is sent once, this long after the first
  BackoffLimits backoff{std::chrono::seconds(1), std::chrono::seconds(60)};
  Duration request_limit = std::chrono::seconds(10);  // for one request, from connecting to the last byte
};

class EventRecorder {
 public:
  static std::unique_ptr<EventRecorder> start_recorder(Loop& loop, ClientConfig access,
                                                       EventTiming timing = {});
  virtual ~EventRecorder() = default;

  // Queues an event. Never blocks. At most kMaxQueued wait; the oldest are dropped and counted. Equal
  // events within the repeat window become one with a count. Retries until the API server accepts the event
  // or rejects it for good, which is logged and counts as dropped. Loop's thread only.
  virtual void record_event(Event event) = 0;

  virtual std::uint64_t sent() const = 0;     // accepted requests
  virtual std::uint64_t dropped() const = 0;  // lost events
  virtual std::size_t queued() const = 0;
  // Events that a repeat can still join: at most kMaxRemembered, none older than the repeat window.
  virtual std::size_t remembered_count() const = 0;
};

}  // namespace gpulet::k8s
