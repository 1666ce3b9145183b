// Conditions of the node: what `kubectl describe node` shows under Conditions, and what a controller that
// repairs nodes waits for. Needs get on nodes and patch on nodes/status.
//
// A condition is merged by its type, so that the kubelet's and others' are never touched. When one came to
// its status is read from the Node first: a restart of the agent does not make it younger.
// Source: Kubernetes API core/v1 NodeCondition; strategic merge patch.
#pragma once

#include <memory>
#include <string>

#include "cluster/sending.h"

namespace gpulet::cluster {

struct Condition {
  enum class Status { kTrue, kFalse, kUnknown };
  std::string type;  // CamelCase: "GpuHealthy"
  Status status = Status::kUnknown;
  std::string reason;   // CamelCase
  std::string message;  // longer than kMaxConditionBytes is cut
  friend bool operator==(const Condition&, const Condition&) = default;
};

inline constexpr std::size_t kMaxConditionBytes = 4096;

struct NodeStatusTiming {
  SendTiming sending;
  // How often what is unchanged is said again, with a new lastHeartbeatTime. It also brings back what
  // somebody took away. Each is one write to the API server for each node: as often as the kubelet's own.
  Duration heartbeat = std::chrono::minutes(5);
};

// Loop's thread only.
class NodeStatus {
 public:
  static std::unique_ptr<NodeStatus> start(Loop& loop, Access access, NodeStatusTiming timing = {});
  virtual ~NodeStatus() = default;

  // Never blocks. The newest wins; all that was set in one turn is one request, tried again until the API
  // server has taken it. What it has is not sent again before the heartbeat.
  virtual void set(Condition condition) = 0;
  // Takes the condition away.
  virtual void remove(const std::string& type) = 0;

  virtual Delivery delivery() const = 0;
};

}  // namespace gpulet::cluster
