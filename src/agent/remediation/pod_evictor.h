// Evicts Pods from faulty GPUs, and those that were cut off from theirs, as health/policy/eviction_policy.h
// decides: one Eviction request per Pod,
// repeated while the API server refuses it (a PodDisruptionBudget) and the device has not recovered. Off by
// default.
//
// A pending eviction is decided again at each change: it ends if the device recovers, the policy or an
// annotation changes, or a limit forbids it. An accepted eviction is not taken back.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/remediation/pod_device_index.h"
#include "base/loop.h"
#include "health/policy/eviction_policy.h"
#include "health/report/node_health.h"
#include "k8s/event_recorder.h"
#include "k8s/pods.h"

namespace gpulet::agent {

// Blocked evictions are decided again after this time.
inline constexpr Duration kBlockedRetryInterval = std::chrono::seconds(30);
// How long the count of unhealthy nodes is used.
inline constexpr Duration kClusterShareTtl = kBlockedRetryInterval;

struct ClusterShare {
  std::size_t nodes = 0, broken = 0;  // labelled nodes; of these, those with a withdrawn device
};

// A warning about one Pod: a Kubernetes Event and a log line.
struct EvictionEvent {
  PodRef pod;
  std::string reason;   // CamelCase: "GpuFaultEviction"
  std::string message;  // one line
  friend bool operator==(const EvictionEvent&, const EvictionEvent&) = default;
};
// Logs `event` behind `subject`, such as "memory limit", and records it.
void send_eviction_event(k8s::EventRecorder& recorder, std::string_view subject, const EvictionEvent& event);

struct PodEvictorPorts {
  Loop& loop;
  // Starts the eviction of one Pod; null without an API server.
  std::function<std::unique_ptr<k8s::Eviction>(const PodRef& pod, k8s::Eviction::UpdateCallback on_update)>
      evict;
  std::function<void(std::function<void(Result<ClusterShare>)>)> share;
  std::function<void(const EvictionEvent&)> notify;
};

struct PodEvictorPolicy {
  health::EvictionPolicy node;
  // With faults on a greater share of the cluster's nodes no Pod is evicted. One node is always allowed. 0:
  // not checked.
  unsigned max_unhealthy_nodes_percent = 0;
};

// Loop's thread only.
class PodEvictor {
 public:
  explicit PodEvictor(PodEvictorPorts ports) : ports_(std::move(ports)) {}

  // Call it whenever a device, a Pod or the policy has changed.
  void update_evictions(health::HealthViewPtr view, std::vector<HeldPod> pods,
                        const PodEvictorPolicy& policy);

  // The Pods that have lost the access to their devices, as far as their API data is known and recent.
  void update_cut_off_pods(std::vector<health::CutOffPod> pods);

  // Accepted evictions, and those of a dry run.
  std::uint64_t evicted() const { return evicted_; }

  // For evictions without a fault (pod_rebalancer.h), which obey the same limit.

  // Whether a Pod leaves because of a fault, or is about to.
  bool is_evicting() const { return is_evicting_; }
  // Counts an eviction. Errors: kUnavailable, about the Pod: as many as may leave within the window have
  // left.
  Status reserve_eviction(const PodRef& pod, const DeviceUuid& gpu);
  // It was not accepted, and is no longer requested.
  void retract_eviction(const PodRef& pod) { log_.retract_eviction(pod.uid); }

 private:
  struct PendingEviction {
    std::unique_ptr<k8s::Eviction> eviction;
    bool finished = false;  // accepted, or refused for good: not decided again
  };

  void decide_and_act();
  health::EvictionInputs eviction_inputs() const;
  std::vector<health::PodOnDevice> known_pods() const;
  std::string cluster_block_reason();
  void request_cluster_share();
  void act_on(const health::EvictionDecision& decision);
  void evict_pod(const health::EvictionDecision& decision);
  void on_eviction_event(const health::EvictionDecision& decision, const k8s::EvictionUpdate& update);
  void notify_pod(const health::EvictionDecision& decision, std::string reason, std::string message);
  void schedule_next(const std::vector<health::EvictionDecision>& decisions);
  void prune_state();

  PodEvictorPorts ports_;
  health::HealthViewPtr view_;
  std::vector<health::PodOnDevice> pods_;
  std::vector<health::CutOffPod> cut_off_;
  PodEvictorPolicy policy_;
  health::EvictionLog log_;
  std::map<std::string, PendingEviction> pending_;  // by the Pod's uid
  std::map<std::string, EvictionEvent> notified_;   // the last event of each Pod, by uid
  std::optional<std::pair<Time, Result<ClusterShare>>> share_;
  bool share_requested_ = false;
  bool is_evicting_ = false;
  std::uint64_t evicted_ = 0;
  Subscription next_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
