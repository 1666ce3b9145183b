// Evicts Pods of this node through the Eviction API, which respects PodDisruptionBudgets and each Pod's
// grace period. No Pod is ever deleted.
//
// Every Pod is read first. If one of them cannot be evicted (a static Pod, which the kubelet runs from a
// file), none is. Each request names the Pod's uid, so that another Pod of the same name is not evicted.
// Needs get on pods and create on pods/eviction. Source: Kubernetes, API-initiated Eviction; policy/v1.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"

namespace gpulet::k8s {

struct EvictionTiming {
  Duration request_limit = std::chrono::seconds(10);
  // For failures that can pass: an exhausted disruption budget, a missing permission, an unreachable
  // server.
  BackoffLimits backoff{std::chrono::seconds(1), std::chrono::seconds(30)};
};

// The state of one Pod, reported whenever it changes.
struct EvictionUpdate {
  enum class Kind {
    kTerminating,  // the eviction is accepted, or the Pod was terminating already; its grace period runs
    kGone,         // the Pod no longer exists on this node
    kWaiting,      // not yet, for `reason`; retried
    kRefused,      // never, for `reason`; no Pod is evicted from now on
  };
  std::string pod;
  Kind kind = Kind::kWaiting;
  std::string reason{};
  friend bool operator==(const EvictionUpdate&, const EvictionUpdate&) = default;
};

// Loop's thread only. Destroying it stops the requests, also from inside the callback; accepted evictions
// continue.
class Eviction {
 public:
  using UpdateCallback = std::function<void(const EvictionUpdate&)>;

  // `pods` as "namespace/name". `news` is called from the loop.
  static std::unique_ptr<Eviction> start_eviction(Loop& loop, ClientConfig access,
                                                  std::vector<std::string> pods, UpdateCallback news,
                                                  EvictionTiming timing = {});
  // With uids: another Pod of the same name counts as gone.
  static std::unique_ptr<Eviction> start_eviction(Loop& loop, ClientConfig access, std::vector<PodRef> pods,
                                                  UpdateCallback news, EvictionTiming timing = {});
  virtual ~Eviction() = default;
};

}  // namespace gpulet::k8s
