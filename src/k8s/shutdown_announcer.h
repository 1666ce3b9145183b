// Announces on the Node that a device plugin is shutting down: none of its resources is allocatable, so
// that no Pod is bound to the Node while nobody could admit it. The plugin keeps serving until Pods bound
// before have been admitted, then closes. After that the kubelet reports the same, until a plugin registers
// again.
//
// The kubelet may overwrite the Node's status in the meantime, so the status is read and patched again.
// Needs get on nodes and patch on nodes/status. Source: Kubernetes scheduler (allocatable of the Node),
// kubelet device manager (Pods that find no healthy device fail for good), Node status updates.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

struct ShutdownTiming {
  Duration limit = std::chrono::seconds(3);  // for everything
  // After this Pods bound before have been admitted, and the kubelet has written what it had in progress.
  Duration settle_time = std::chrono::milliseconds(300);
};

// Loop's thread only.
class ShutdownAnnouncer {
 public:
  // Calls `close` and then `done` from the loop, each once: `close` when the Node has had the status for
  // `settle_time`, `done` when it still has it after that. Both are called at the limit, or at once when
  // the API server rejects the patch, which is logged.
  static std::unique_ptr<ShutdownAnnouncer> announce_shutdown(Loop& loop, ClientConfig access,
                                                              std::vector<std::string> resources,
                                                              std::function<void()> close,
                                                              std::function<void()> done,
                                                              ShutdownTiming timing = {});
  virtual ~ShutdownAnnouncer() = default;
};

}  // namespace gpulet::k8s
