// What the agent does to the Pods that hold a broken device: it evicts them, and annotates them. Each request
// names the Pod's uid, so that another Pod of the same name is neither evicted nor changed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"

namespace gpulet::k8s {

// Evicts Pods of this node through the Eviction API, which respects PodDisruptionBudgets and each Pod's
// grace period. No Pod is ever deleted.
//
// Every Pod is read first. If one of them cannot be evicted (a static Pod, which the kubelet runs from a
// file), none is. Needs get on pods and create on pods/eviction. Source: Kubernetes, API-initiated Eviction;
// policy/v1.

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

  // `pods` as "namespace/name". `on_update` is called from the loop.
  static std::unique_ptr<Eviction> start_eviction(Loop& loop, ClientConfig access,
                                                  std::vector<std::string> pods, UpdateCallback on_update,
                                                  EvictionTiming timing = {});
  // With uids: another Pod of the same name counts as gone.
  static std::unique_ptr<Eviction> start_eviction(Loop& loop, ClientConfig access, std::vector<PodRef> pods,
                                                  UpdateCallback on_update, EvictionTiming timing = {});
  virtual ~Eviction() = default;
};

// Annotates Pods, to tell their owners and controllers what happened to their device. Needs patch on pods.
// Source: Kubernetes API core/v1 Pod; merge patch.

inline constexpr std::size_t kMaxAnnotatedPods = 1024;    // a node runs 110 by default
inline constexpr std::size_t kMaxAnnotationBytes = 4096;  // of one value; longer ones are cut

// Loop's thread only.
class PodAnnotations {
 public:
  static std::unique_ptr<PodAnnotations> start_annotations(Loop& loop, ClientConfig access,
                                                           SendTiming timing = {});
  virtual ~PodAnnotations() = default;

  // nullopt removes the annotation. Never blocks. The newest value of a Pod and key wins. All set for a Pod
  // in one turn of the loop is one request, which is retried until the API server accepts it or the Pod is
  // gone. An accepted value is not sent again. A rejected Pod does not delay others. Beyond
  // kMaxAnnotatedPods the least recently annotated Pod is forgotten. Errors: kInvalidArgument for a text
  // that is not the name of a Pod.
  virtual Status set_annotation(const PodRef& pod, const std::string& key,
                                std::optional<std::string> value) = 0;
  // The Pod is gone: drops what was to be sent for it.
  virtual void forget_pod(const PodRef& pod) = 0;

  virtual SendStatus annotation_status() const = 0;
  virtual std::size_t pod_count() const = 0;  // that are remembered
};

}  // namespace gpulet::k8s
