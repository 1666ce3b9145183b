// Follows the labels of one Node: a list, then a watch that goes on from it, over one connection without a
// thread. Needs get, list and watch on nodes. Source: Kubernetes API concepts, "Efficient detection of
// changes".
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/access.h"

namespace gpulet::cluster {

using Labels = std::map<std::string, std::string>;

struct NodeWatchTiming {
  Duration request_limit = std::chrono::seconds(10);  // for the list, and for the watch's head
  // How long the server is asked to keep a watch open; then it is begun anew from where it was.
  std::chrono::seconds watch_for{300};
  BackoffLimits backoff{std::chrono::milliseconds(100), std::chrono::seconds(30)};
};

// A Node object, or a line of the watch, is no larger.
inline constexpr std::size_t kMaxObjectBytes = 4u << 20;

// Loop's thread only; ends when it is destroyed.
class NodeWatch {
 public:
  // `changed` is called from the loop with all labels, the first time and whenever they differ. While the API
  // server is away, or refuses (said once in the log, with the right that is missing), the last known ones
  // hold.
  static std::unique_ptr<NodeWatch> start(Loop& loop, Access access, NodeWatchTiming timing,
                                          std::function<void(const Labels&)> changed);
  virtual ~NodeWatch() = default;
};

}  // namespace gpulet::cluster
