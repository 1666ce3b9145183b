// Lists and deletes Pods of this node, for a program with the rights of NVIDIA's MIG manager: list on pods,
// but no watch, and delete in one namespace. Source: Kubernetes API concepts, "Label selectors"; core/v1 Pod.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "k8s/client_config.h"
#include "k8s/objects.h"

namespace gpulet::k8s {

struct PodSelection {
  std::string name_space{};      // empty: all
  std::string label_selector{};  // "app in (a,b)"; empty: all
  // If set, only Pods of DaemonSets whose node selector has this key. The whole Pods are read then, not only
  // their metadata.
  std::string node_selector_key{};
  // Called with each whole Pod of the answer; then only those in the phase Pending.
  std::function<void(std::string_view object)> on_pending_pod{};
};

// Loop's thread only. One request at a time, in the order of the calls, without retries. Each callback comes
// once, from the loop, never from inside the call or after destruction. Errors: kPermissionDenied with the
// missing right, kIo, and those of ApiClient.
class NodePods {
 public:
  static std::unique_ptr<NodePods> start_node_pods(Loop& loop, ClientConfig access,
                                                   Duration request_limit = std::chrono::seconds(10));
  virtual ~NodePods() = default;

  // The Pods of access.node_name, terminating ones included.
  virtual void list_pods(const PodSelection& selection,
                         std::function<void(Result<std::vector<PodRef>>)> done) = 0;
  // With the uid as a precondition: another Pod of the same name stays. One that is gone is no error. The
  // first error ends it.
  virtual void delete_pods(std::vector<PodRef> pods, std::function<void(Status)> done) = 0;
};

}  // namespace gpulet::k8s
