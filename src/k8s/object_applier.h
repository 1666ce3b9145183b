// Keeps and removes what gpulet owns in the cluster: an object that belongs to the Node, and on uninstall
// everything that an agent has left there. Source: Kubernetes API concepts, "Server-Side Apply"; strategic
// merge patch.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

struct ApplyTiming {
  SendTiming sending{std::chrono::seconds(10), {std::chrono::seconds(1), std::chrono::seconds(60)}};
  // How often an unchanged object is written again, with the Node read again. Such a write costs the API
  // server no storage, and restores an object that was deleted.
  Duration refresh = std::chrono::minutes(10);
};

struct ObjectKind {
  std::string api_version, kind;  // "gpulet.io/v1alpha1", "GpuNode"
  std::string collection;         // "/apis/gpulet.io/v1alpha1/gpunodes"
};

// Applies one object with the Node's name, owned by the Node and deleted with it. Others' fields in it are
// kept. Needs get on nodes, and create and patch on the kind. Loop's thread only. Never blocks.
class ObjectApplier {
 public:
  // `on_object`, which may be empty, gets the object's JSON: first what an earlier process left, before
  // anything is written, or "" where there is none or it cannot be read; then the object after each write,
  // with what others have written. It is read by a patch without a change: no further right is needed.
  // Called from the loop; may not destroy the applier.
  static std::unique_ptr<ObjectApplier> start_applier(
      Loop& loop, ClientConfig access, ObjectKind kind, ApplyTiming timing = {},
      std::function<void(const std::string&)> on_object = nullptr);
  virtual ~ObjectApplier() = default;

  // The object's `spec`, as JSON. The newest wins and is retried until the API server accepts it.
  virtual void set_spec(std::string spec) = 0;
  virtual SendStatus applier_status() const = 0;
};

struct NodeLeftovers {
  std::string field_manager;            // labels applied by it (kLabelFieldManager)
  std::vector<std::string> labels;      // these, whoever wrote them
  std::vector<std::string> taints;      // by key, with any effect
  std::vector<std::string> conditions;  // by type
  std::vector<std::string> objects;     // paths of other objects: "/apis/gpulet.io/v1alpha1/gpunodes/node-1"
  std::vector<std::string> annotations{};  // these, whoever wrote them
};

// Removes what an agent keeps on its Node across restarts. What others have written stays. Needs get and
// patch on nodes, patch on nodes/status, and delete on the objects' kinds. Loop's thread only.
class NodeCleanup {
 public:
  // Begins at once and retries until everything is removed; then calls `done`, once, from the loop. A
  // missing Node or object counts as removed.
  static std::unique_ptr<NodeCleanup> start_cleanup(Loop& loop, ClientConfig access, NodeLeftovers left,
                                                    std::function<void()> done, SendTiming timing = {});
  virtual ~NodeCleanup() = default;

  virtual SendStatus cleanup_status() const = 0;
};

}  // namespace gpulet::k8s
