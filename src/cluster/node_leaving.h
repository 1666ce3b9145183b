// Before a device plugin goes: the Node says that none of its resources is allocatable, so that no Pod is
// bound to it while nobody could admit it. Whoever serves is to go on until this is done: Pods that were
// bound just before are still on their way. The kubelet says the same once the plugin has gone, and what is
// so once one is there again. Needs get on nodes and patch on nodes/status.
//
// The kubelet may write its own view again in the meantime: then it is said once more.
// Source: Kubernetes scheduler (allocatable of the Node), kubelet device manager (Pods that find no healthy
// device fail for good), Node status updates.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "cluster/access.h"

namespace gpulet::cluster {

struct LeavingTiming {
  Duration limit = std::chrono::seconds(2);         // for all of it
  Duration quiet = std::chrono::milliseconds(300);  // what was bound before has been admitted by then
};

// Loop's thread only.
class NodeLeaving {
 public:
  // Calls `done` from the loop, once: when the Node has said so for `quiet`, at the limit, or at once where
  // the API server does not take it, which is said in the log.
  static std::unique_ptr<NodeLeaving> start(Loop& loop, Access access, std::vector<std::string> resources,
                                            std::function<void()> done, LeavingTiming timing = {});
  virtual ~NodeLeaving() = default;
};

}  // namespace gpulet::cluster
