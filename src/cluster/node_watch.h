// Follows the labels of one Node (object_watch.h). Needs get, list and watch on nodes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/object_watch.h"

namespace gpulet::cluster {

using Labels = std::map<std::string, std::string>;

// Loop's thread only; ends when it is destroyed.
class NodeWatch {
 public:
  // `changed` is called from the loop with all labels, the first time and whenever they differ. While the API
  // server is away, or refuses (said once in the log, with the right that is missing), the last known ones
  // hold.
  static std::unique_ptr<NodeWatch> start(Loop& loop, const Access& access, WatchTiming timing,
                                          std::function<void(const Labels&)> changed);
  virtual ~NodeWatch() = default;
};

}  // namespace gpulet::cluster
