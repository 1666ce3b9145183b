// When a device plugin goes: the Node says that none of its resources is allocatable, so that no Pod is bound
// to it while nobody could admit it. The plugin goes on serving until what was bound before has been
// admitted, and closes then. The kubelet says the same from there on, and what is so once a plugin is there
// again. Needs get on nodes and patch on nodes/status.
//
// The kubelet may write its own view again in the meantime, and also after the plugin has closed, where it
// had made that before: so it is looked whether it still is so, and said once more. Source: Kubernetes
// scheduler (allocatable of the Node), kubelet device manager (Pods that find no healthy device fail for
// good), Node status updates.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "cluster/access.h"

namespace gpulet::cluster {

struct LeavingTiming {
  Duration limit = std::chrono::seconds(3);  // for all of it
  // What was bound before has been admitted by then; and what the kubelet was writing is written.
  Duration quiet = std::chrono::milliseconds(300);
};

// Loop's thread only.
class NodeLeaving {
 public:
  // Calls `close` and then `done` from the loop, each once: `close` when the Node has said so for `quiet`,
  // `done` when it still does after that. Both at the limit, or at once where the API server does not take
  // it, which is said in the log.
  static std::unique_ptr<NodeLeaving> start(Loop& loop, Access access, std::vector<std::string> resources,
                                            std::function<void()> close, std::function<void()> done,
                                            LeavingTiming timing = {});
  virtual ~NodeLeaving() = default;
};

}  // namespace gpulet::cluster
