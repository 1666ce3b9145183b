// Which Pods are evicted from a faulty GPU, when, and why not: a pure rule over the node's devices and Pods.
//
// Off by default. Only a Pod that holds a device which is not allocatable is ever evicted, never one on a
// device that is only flagged; and, by a setting of its own, one whose container has lost the access to its
// devices (CutOffPod). PodEvictor (agent/remediation/pod_evictor.h) carries the decisions out; it may
// ask again at any time, also after a restart, and at the times that decisions name. A Pod whose eviction was
// requested is not evicted again. PodDisruptionBudgets are honoured by the API server's Eviction API.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "health/state/device_status.h"

namespace gpulet::health {

// On a Pod or its namespace; the Pod's own wins.
inline constexpr const char* kGraceAnnotation = "gpulet.io/on-gpu-fault";

// How long a Pod may stay on a faulty device.
struct Grace {
  enum class Kind {
    kStay,    // "stay": gets an Event, is never evicted
    kFinish,  // "finish": may run to completion; "finish=30m": is evicted this long after the fault
    kEvict,   // "evict": at once
  };
  Kind kind = Kind::kStay;
  std::optional<Duration> deadline{};  // of kFinish
  friend bool operator==(const Grace&, const Grace&) = default;
};
std::string grace_text(const Grace& grace);
// Accepts the texts above; a time is whole seconds, minutes, hours or days (s, m, h, d), 1 s to kMaxGrace.
// Errors: kInvalidArgument.
Result<Grace> parse_grace(std::string_view text);
inline constexpr Duration kMaxGrace = std::chrono::hours(24 * 30);

struct EvictionPolicy {
  bool enabled = false;
  bool dry_run = false;                      // decide as usual, but only report
  std::map<FaultClass, Grace> class_graces;  // where they differ from those of the effects below
  Grace draining{Grace::Kind::kFinish, std::nullopt};
  Grace quarantined{Grace::Kind::kFinish, std::chrono::minutes(5)};
  Grace lost{Grace::Kind::kEvict, std::nullopt};
  Grace access_lost{};     // of CutOffPod. kStay: also against the annotation, which speaks of faults
  bool bare_pods = false;  // also evict Pods without an owner, which nothing restarts

  // At most this many Pods leave the node within the window. 0: none.
  unsigned max_evictions = 16;
  Duration max_evictions_window = std::chrono::minutes(5);
  // With faults on a greater share of the node's GPUs the cause is the node: no Pod is evicted. One GPU is
  // always allowed. A GPU counts while it is withdrawn, and for the window after Pods were evicted from it.
  unsigned max_unhealthy_gpus_percent = 50;
  Duration unhealthy_gpus_window = std::chrono::minutes(5);

  // By class, else by effect. kDriverAway, which says nothing about the GPU, stays.
  Grace grace_for(const Fault& fault) const;
};

// Why an evicted Pod would not come back on another GPU; empty if it would. `owner`: the kind of its
// controller, `mirror`: a static Pod.
std::string no_return_reason(std::string_view owner, bool mirror);

struct PodOnDevice {
  std::string name_space, name, uid;
  std::string owner;    // the kind of its controller: "ReplicaSet"; empty without one
  bool mirror = false;  // a static Pod: the kubelet runs it regardless of the API server
  bool terminating = false;
  std::optional<std::string> annotation{}, namespace_annotation{};  // values of kGraceAnnotation
  std::vector<Scope> devices{};
};

// A container of the Pod may no longer open its devices, though they have no fault
// (agent/remediation/cut_off_pods.h).
struct CutOffPod {
  PodOnDevice pod;
  std::string finding;  // "container main may not open /dev/nvidia0"
  Time since{};
};

struct FaultyDevice {
  Scope device;
  DeviceStatus status;
  static FaultyDevice from_change(const StatusChange& change) { return {change.device, change.after}; }
};

struct EvictionDecision {
  enum class Act {
    kNotify,       // never evicted
    kFinish,       // may run to completion
    kEvictAt,      // evicted at `at`, unless the device recovers first
    kBlocked,      // would be evicted now, but a limit forbids it
    kEvict,        // now
    kTerminating,  // already leaving: evicted before, or deleted by somebody else
  };
  std::string name_space, name, uid;
  Scope device;  // the device whose fault asks for the earliest eviction; empty without a fault
  std::optional<FaultClass> fault_class{};  // nullopt: without a fault
  Act act = Act::kNotify;
  std::optional<Time> at{};  // of kEvictAt
  std::string
      reason{};  // "XID 79: GPU has fallen off the bus; a DaemonSet Pod, which would return to this node"
  bool dry_run = false;
  friend bool operator==(const EvictionDecision&, const EvictionDecision&) = default;
};
std::string_view enum_name(EvictionDecision::Act act);  // "evict"

// The evictions of this run, for the limits. After a restart the limits start over; a Pod whose eviction was
// requested but that is not terminating yet is evicted again, which the API server treats as one request.
class EvictionLog {
 public:
  struct Entry {
    Time at{};
    DeviceUuid gpu;
    bool fault = true;  // false: not of a fault of the GPU, and max_unhealthy_gpus_percent does not count it
  };
  void record_eviction(const EvictionDecision& decision, Time now);
  // The API server has not accepted the eviction, and it is no longer requested.
  void retract_eviction(const std::string& uid) { entries_.erase(uid); }
  // Forgets Pods that are gone and that no limit counts.
  void prune(std::span<const PodOnDevice> pods, const EvictionPolicy& policy, Time now);
  const std::map<std::string, Entry>& evictions() const { return entries_; }

 private:
  std::map<std::string, Entry> entries_;  // by the Pod's uid
};

struct EvictionInputs {
  std::vector<FaultyDevice> devices;  // all known devices, healthy ones too
  unsigned gpus = 0;                  // of the node, lost ones too
  std::string blocked_reason{};       // why the cluster's state forbids evictions; empty: it does not
  std::vector<CutOffPod> cut_off{};   // each Pod once
};

// One decision for each Pod that holds a device which is not allocatable, and each cut-off one unless
// access_lost is kStay, by namespace and name; of both, the stricter. At most
// max_evictions of them are kEvict, counting those in the log; the next are kEvictAt the time when the limit
// allows them. The caller records each kEvict in the log, also in a dry run, and decides again when a device
// or Pod changes, at the earliest `at`, and periodically while a decision is kBlocked. Cost: O(devices ×
// Pods). Pure: any thread.
std::vector<EvictionDecision> decide_evictions(const EvictionInputs& node, std::span<const PodOnDevice> pods,
                                               const EvictionPolicy& policy, const EvictionLog& log,
                                               Time now);

}  // namespace gpulet::health
