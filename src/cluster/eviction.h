// Asks Pods of this node to leave, through the Eviction API, which honours PodDisruptionBudgets and each
// Pod's grace period. No Pod is ever deleted.
//
// First every Pod is looked at: where one of them cannot leave (a static Pod, which the kubelet runs whatever
// the API server says), none is asked. Each request is for the very Pod that was seen (its uid), so that
// another one of the same name elsewhere is left alone. Needs get on pods and create on pods/eviction.
// Source: Kubernetes, API-initiated Eviction; policy/v1.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/pod_ref.h"

namespace gpulet::cluster {

struct EvictionTiming {
  Duration request_limit = std::chrono::seconds(10);
  // Of what may change: a disruption budget that allows none now, a right that is missing, a server that is
  // away.
  BackoffLimits backoff{std::chrono::seconds(1), std::chrono::seconds(30)};
};

// What is known of one Pod, told whenever it changes.
struct EvictionNews {
  enum class Kind {
    kLeaving,  // the API server took the request, or the Pod was leaving already; its grace period runs
    kGone,     // there is no such Pod on this node any more
    kWaiting,  // not now, for `why`; tried again
    kRefused,  // never, for `why`; nothing more is asked for any Pod
  };
  std::string pod;
  Kind kind = Kind::kWaiting;
  std::string why{};
  friend bool operator==(const EvictionNews&, const EvictionNews&) = default;
};

// Loop's thread only. Destroying it ends the asking, also from inside `news`; what was taken goes on.
class Eviction {
 public:
  using News = std::function<void(const EvictionNews&)>;

  // `pods` as "namespace/name". `news` comes from the loop.
  static std::unique_ptr<Eviction> start(Loop& loop, Access access, std::vector<std::string> pods, News news,
                                         EvictionTiming timing = {});
  // These very Pods: another one by that name is none of them.
  static std::unique_ptr<Eviction> start(Loop& loop, Access access, std::vector<PodRef> pods, News news,
                                         EvictionTiming timing = {});
  virtual ~Eviction() = default;
};

}  // namespace gpulet::cluster
