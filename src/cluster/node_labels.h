// Labels of the Node that are ours: they come and go as one set, also those of a run before this one, and no
// others are touched. Needs get and patch on nodes.
//
// The API server itself keeps whose label is whose: the set is applied under a field manager of its own, and
// what that manager had and no longer has is taken away there. The Node is read first, so that its uid goes
// with the set: a set for a Node that is not there makes none. Source: Kubernetes API concepts, "Server-Side
// Apply".
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cluster/sending.h"

namespace gpulet::cluster {

inline constexpr const char* kLabelManager = "gpulet-labels";

// Loop's thread only.
class NodeLabels {
 public:
  // `settled` is called from the loop each time that the newest set has been taken; may be empty.
  static std::unique_ptr<NodeLabels> start(Loop& loop, Access access, std::function<void()> settled = {},
                                           SendTiming timing = {});
  virtual ~NodeLabels() = default;

  // From now on these are the Node's labels of us, and no others; one that somebody else has set is ours
  // then. Never blocks; the newest wins, and is tried again until it is so. Nothing is touched before the
  // first call.
  virtual void set(std::map<std::string, std::string> labels) = 0;
  // Looks whether they are still there, and sets them again where not: a Node that was made anew has none.
  virtual void look_again() = 0;

  virtual Delivery delivery() const = 0;
};

}  // namespace gpulet::cluster
