// Who has to move away from a GPU that broke, when, and why not: a pure rule over what is known of the node.
//
// Off by default. Only a Pod that holds a device which is not offered any more is ever moved, never one on a
// device that is only flagged. What is decided is a list for whoever acts: it may be asked for again at any
// time, for example after a restart, and at the times that it names; a Pod that was asked to leave is not
// asked again.
// Nothing here knows of the API server: cluster/eviction.h asks, and honours PodDisruptionBudgets.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "health/state.h"

namespace gpulet::health {

// On a Pod or on its namespace; the Pod's own goes first.
inline constexpr const char* kGraceAnnotation = "gpulet.io/on-gpu-fault";

// How long who is on a broken device may stay.
struct Grace {
  enum class Kind {
    kStay,    // "stay": told, never moved
    kFinish,  // "finish": may come to its end; "finish=30m": evicted so long after the fault
    kEvict,   // "evict": at once
  };
  Kind kind = Kind::kStay;
  std::optional<Duration> deadline{};  // of kFinish
  friend bool operator==(const Grace&, const Grace&) = default;
};
std::string text(const Grace& grace);
// kInvalidArgument for anything but the texts above; a time is whole seconds, minutes, hours or days (s, m,
// h, d), from a second to kMaxGrace.
Result<Grace> parse_grace(std::string_view text);
inline constexpr Duration kMaxGrace = std::chrono::hours(24 * 30);

struct MovingPolicy {
  bool enabled = false;
  bool dry_run = false;                // decides all the same, and says so
  std::map<FaultClass, Grace> graces;  // where they differ from the effects' below
  Grace drained{Grace::Kind::kFinish, std::nullopt};
  Grace quarantined{Grace::Kind::kFinish, std::chrono::minutes(5)};
  Grace lost{Grace::Kind::kEvict, std::nullopt};
  bool bare_pods = false;  // those without an owner too: nobody would start them again

  // No more than so many Pods leave this node within the window. 0: none.
  unsigned rate = 16;
  Duration rate_window = std::chrono::minutes(5);
  // Faults on more than this share of the node's GPUs are one fault of the node: nobody is moved. One GPU is
  // never too many. A GPU counts while it is withdrawn, and for the window after Pods were moved from it.
  unsigned breaker_percent = 50;
  Duration breaker_window = std::chrono::minutes(5);

  // What the effect and the class ask for; kDriverAway, which says nothing about a GPU, lets stay.
  Grace grace(const Fault& fault) const;
};

struct PodOnDevice {
  std::string name_space, name, uid;
  std::string owner;    // the kind of its controller: "ReplicaSet"; empty without one
  bool mirror = false;  // a static Pod: the kubelet runs it whatever the API server says
  bool leaving = false;
  std::optional<std::string> annotation{}, namespace_annotation{};  // kGraceAnnotation's values
  std::vector<Scope> devices{};
};

struct DeviceStanding {
  Scope device;
  Standing standing;
  static DeviceStanding of(const Change& change) { return {change.device, change.after}; }
};

struct Decision {
  enum class Act {
    kTell,     // never moved
    kFinish,   // may come to its end
    kEvictAt,  // evicted at `at`, unless the device is well by then
    kHold,     // would be evicted now, but for the breaker, a rate of none, or something outside
    kEvict,    // now
    kLeaving,  // is on its way: asked before, or by somebody else
  };
  std::string name_space, name, uid;
  Scope device;  // the one whose fault asks for the most
  FaultClass fault_class = FaultClass::kXidUnknown;
  Act act = Act::kTell;
  std::optional<Time> at{};  // of kEvictAt
  std::string reason{};      // "XID 79: GPU has fallen off the bus; a DaemonSet's Pod would come back here"
  bool dry_run = false;
  friend bool operator==(const Decision&, const Decision&) = default;
};
std::string_view name(Decision::Act act);  // "evict"

// Who was asked to leave, and when: what the limits count. Of this run alone: after a restart the limits
// begin anew, and a Pod that was asked but is not leaving yet is asked again, which the API server takes as
// one.
class MovingLog {
 public:
  struct Entry {
    Time at{};
    DeviceUuid gpu;
    bool fault = true;  // and not an operator's wish, which the breaker does not count
  };
  void add(const Decision& decision, Time now);
  // The Pod was not asked after all: the API server has not taken the request, and nobody asks it any more.
  void take_back(const std::string& uid) { entries_.erase(uid); }
  // Forgets whom nobody knows any more and no limit counts.
  void tidy(std::span<const PodOnDevice> pods, const MovingPolicy& policy, Time now);
  const std::map<std::string, Entry>& entries() const { return entries_; }

 private:
  std::map<std::string, Entry> entries_;  // by the Pod's uid
};

struct MovingNode {
  std::vector<DeviceStanding> devices;  // all that are known, also those that are well
  unsigned gpus = 0;                    // of the node, also those that are lost
  std::string hold{};  // why nobody is to be moved, from outside: the share of the cluster; empty: nothing
};

// One decision for each Pod that holds a device that is not offered, by namespace and name. At most the
// rate's number of them is kEvict, counting those in the log; the next are kEvictAt the time when it allows
// them. Whoever acts on a kEvict adds it to the log, also in a dry run, and asks again when a device or a Pod
// changes, at the earliest `at`, and after a while as long as one is held. Cost: O(devices × Pods). Pure: any
// thread.
std::vector<Decision> decide_moves(const MovingNode& node, std::span<const PodOnDevice> pods,
                                   const MovingPolicy& policy, const MovingLog& log, Time now);

}  // namespace gpulet::health
