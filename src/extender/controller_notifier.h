// Sends what other nodes know of a controller to the agent of the node where one of its Pods is bound, so
// that the Pod's forecast starts with what its predecessors did elsewhere. It goes into the `status` of the
// node's GpuNode, which the agent receives with its next write, when the Pod gets its devices: no agent reads
// other nodes, or needs a right for it. Every replica sends the same.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "scheduler/core/cluster_state.h"

namespace gpulet::extender {

inline constexpr std::size_t kMaxSentControllers = 8;  // the latest of a node

// Needs patch on gpunodes/status. Loop's thread only.
class ControllerNotifier {
 public:
  // `cluster` must outlive it.
  ControllerNotifier(Loop& loop, k8s::ClientConfig access, const scheduler::ClusterState& cluster,
                     k8s::SendTiming timing = {});
  ControllerNotifier(const ControllerNotifier&) = delete;

  // The Pod was bound just now. Nothing is sent for a controller that its node knows, or that none knows.
  void on_bound(const scheduler::PodRequest& pod);

 private:
  void send_next();

  const scheduler::ClusterState& cluster_;
  std::map<std::string, std::vector<scheduler::ControllerLoad>> sent_;  // by node, oldest first
  std::map<std::string, std::string> pending_;                          // status by node
  k8s::RetryingSender sending_;
};

}  // namespace gpulet::extender
