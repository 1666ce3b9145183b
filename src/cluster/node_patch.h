// Sets and takes away labels of the node. Needs patch on nodes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/access.h"

namespace gpulet::cluster {

struct NodePatchTiming {
  Duration request_limit = std::chrono::seconds(10);
  BackoffLimits backoff{std::chrono::milliseconds(500), std::chrono::seconds(30)};
};

// Loop's thread only.
class NodePatch {
 public:
  static std::unique_ptr<NodePatch> start(Loop& loop, Access access, NodePatchTiming timing = {});
  virtual ~NodePatch() = default;

  // nullopt takes the label away. The newest value wins; all that was set in one turn is one request, which
  // is tried again until the API server has taken it. What it took last is not sent again.
  virtual void set_label(const std::string& key, std::optional<std::string> value) = 0;
};

}  // namespace gpulet::cluster
