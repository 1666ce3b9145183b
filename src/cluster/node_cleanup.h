// Takes away what an agent has written to its Node and keeps there for whoever comes after it: labels,
// taints, conditions, and the object of its own. Needs get and patch on nodes, patch on nodes/status, and
// delete on the object's kind. What somebody else has written stays, also beside ours. Source: Kubernetes API
// concepts, "Server-Side Apply"; strategic merge patch.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/sending.h"

namespace gpulet::cluster {

struct LeftOnNode {
  std::string field_manager;            // whose applied labels go (kLabelManager)
  std::vector<std::string> labels;      // and these, whoever wrote them
  std::vector<std::string> taints;      // by key, with any effect
  std::vector<std::string> conditions;  // by type
  std::vector<std::string> objects;     // paths of other objects: "/apis/gpulet.io/v1alpha1/gpunodes/node-1"
};

// Loop's thread only.
class NodeCleanup {
 public:
  // Begins at once and tries again until all is gone; then calls `done`, once, from the loop. A Node, or an
  // object, that is not there is as good as gone.
  static std::unique_ptr<NodeCleanup> start(Loop& loop, Access access, LeftOnNode left,
                                            std::function<void()> done, SendTiming timing = {});
  virtual ~NodeCleanup() = default;

  virtual Delivery delivery() const = 0;
};

}  // namespace gpulet::cluster
