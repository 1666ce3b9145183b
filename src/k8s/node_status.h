// Publishes conditions and taints of this node, and announces a device plugin's shutdown on it. Source:
// Kubernetes API core/v1 NodeCondition, Taint; strategic merge patch; API concepts, "Resource versions".
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

struct Condition {
  enum class Status { kTrue, kFalse, kUnknown };
  std::string type;  // CamelCase: "GpuHealthy"
  Status status = Status::kUnknown;
  std::string reason;   // CamelCase
  std::string message;  // longer than kMaxConditionBytes is cut
  friend bool operator==(const Condition&, const Condition&) = default;
};

inline constexpr std::size_t kMaxConditionBytes = 4096;

struct NodeConditionsTiming {
  SendTiming sending;
  // How often an unchanged condition is written again with a new lastHeartbeatTime, which also restores a
  // removed one. One write per node, as often as the kubelet's own.
  Duration heartbeat = std::chrono::minutes(5);
};

// Writes conditions of the Node, which `kubectl describe node` shows and repair controllers watch.
// Conditions are merged by type, so others' are never touched. lastTransitionTime is read from the Node
// first, so a restart of the agent does not reset it. Needs get on nodes and patch on nodes/status. Loop's
// thread only.
class NodeConditions {
 public:
  static std::unique_ptr<NodeConditions> start_conditions(Loop& loop, ClientConfig access,
                                                          NodeConditionsTiming timing = {});
  virtual ~NodeConditions() = default;

  // Never blocks. The newest condition of a type wins. All set in one turn of the loop are one request,
  // which is retried until the API server accepts it. Unchanged ones are sent again at the heartbeat.
  virtual void set_condition(Condition condition) = 0;
  virtual void remove_condition(const std::string& type) = 0;

  virtual SendStatus condition_status() const = 0;
};

struct Taint {
  std::string key;     // "gpulet.io/gpu-fault"
  std::string value;   // may be empty
  std::string effect;  // "NoSchedule", "PreferNoSchedule" or "NoExecute"
  friend auto operator<=>(const Taint&, const Taint&) = default;
};

struct NodeTaintsTiming {
  SendTiming sending;
  // How often the taints are read, while there are any, and restored: a Node that was created again has
  // none.
  Duration check = std::chrono::minutes(5);
};

// Owns the taints of some keys on the Node. The Node's taints are one list: it is read, the owned ones are
// replaced, others stay in their order, and it is written only if the Node's resourceVersion has not
// changed. Needs get and patch on nodes. Loop's thread only.
class NodeTaints {
 public:
  // Owns every taint with one of `keys`, also those of a previous run.
  static std::unique_ptr<NodeTaints> start_taints(Loop& loop, ClientConfig access, std::set<std::string> keys,
                                                  NodeTaintsTiming timing = {});
  virtual ~NodeTaints() = default;

  // Replaces the owned taints. Never blocks; the newest call wins and is retried until it is written.
  // Nothing is written before the first call. Errors: kInvalidArgument for a key that is not owned, an
  // unknown effect, and two taints with the same key and effect.
  virtual Status set_taints(std::vector<Taint> taints) = 0;

  virtual SendStatus taint_status() const = 0;
};

// Announces on the Node that a device plugin is shutting down: none of its resources is allocatable, so
// that no Pod is bound to the Node while nobody could admit it. The plugin keeps serving until Pods bound
// before have been admitted, then closes. After that the kubelet reports the same, until a plugin registers
// again.
//
// The kubelet may overwrite the Node's status in the meantime, so the Node is watched and patched again.
// Needs get on nodes and patch on nodes/status, and list and watch on nodes to notice an overwrite at once
// instead of after the settle time. Source: Kubernetes scheduler (allocatable of the Node),
// kubelet device manager (Pods that find no healthy device fail for good), Node status updates.

struct ShutdownTiming {
  Duration limit = std::chrono::seconds(16);  // for everything
  // Before `close`, for the kubelet's next write, which overwrites the status: `close` must not coincide with
  // it. A write that is in progress at `close` says that devices are allocatable, and Pods are bound that
  // nobody admits. Longer than the period of the kubelet's writes (nodeStatusUpdateFrequency, 10 s by
  // default).
  Duration overwrite_wait = std::chrono::seconds(11);
  // After an overwrite was corrected, for Pods that were bound at it to be admitted.
  Duration settle_time = std::chrono::seconds(2);
  // The same where the kubelet overwrites it more often than that.
  Duration settle_after_overwrite = std::chrono::milliseconds(400);
  // After `close`, for such a write to be corrected.
  Duration settle_after_close = std::chrono::seconds(1);
};

// Loop's thread only.
class ShutdownAnnouncer {
 public:
  // Calls `close` and then `done` from the loop, each once: `close` when an overwrite was corrected and the
  // settle time has passed, or there was none in the time for one, `done` when the Node still has the status
  // some time after that. Both are called at the limit, or at once when the API server rejects the patch,
  // which is logged.
  static std::unique_ptr<ShutdownAnnouncer> announce_shutdown(Loop& loop, ClientConfig access,
                                                              std::vector<std::string> resources,
                                                              std::function<void()> close,
                                                              std::function<void()> done,
                                                              ShutdownTiming timing = {});
  virtual ~ShutdownAnnouncer() = default;
};

}  // namespace gpulet::k8s
