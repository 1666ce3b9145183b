// Taints of the node that are ours: they keep new Pods away, or send those away that do not tolerate them.
// Needs get and patch on nodes.
//
// The Node's taints are one list that is written whole. It is read, ours in it are replaced and all others
// left as they are, in their order, and it is written only if nobody wrote the Node in between (its
// resourceVersion); else it is read anew.
// Source: Kubernetes API core/v1 Taint; API concepts, "Resource versions".
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/result.h"
#include "cluster/sending.h"

namespace gpulet::cluster {

struct Taint {
  std::string key;     // "gpulet.io/gpu-fault"
  std::string value;   // may be empty
  std::string effect;  // "NoSchedule", "PreferNoSchedule" or "NoExecute"
  friend auto operator<=>(const Taint&, const Taint&) = default;
};

struct NodeTaintsTiming {
  SendTiming sending;
  // How often it is looked whether ours are still there, while there are any: a Node that was made anew has
  // none.
  Duration check = std::chrono::minutes(5);
};

// Loop's thread only.
class NodeTaints {
 public:
  // Every taint of one of `keys` is ours, also those of a run before this one.
  static std::unique_ptr<NodeTaints> start(Loop& loop, Access access, std::set<std::string> keys,
                                           NodeTaintsTiming timing = {});
  virtual ~NodeTaints() = default;

  // From now on these are the node's taints of our keys, and no others. Never blocks; the newest wins, and is
  // tried again until it is so. Nothing is touched before the first call.
  // Errors: kInvalidArgument for a key that is not ours, an effect that there is not, and two of one key and
  // effect.
  virtual Status set(std::vector<Taint> taints) = 0;

  virtual Delivery delivery() const = 0;
};

}  // namespace gpulet::cluster
