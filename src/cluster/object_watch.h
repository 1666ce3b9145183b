// Follows one object of the API server by its name: a list, then a watch that goes on from it, over one
// connection without a thread. Needs get, list and watch on it. Source: Kubernetes API concepts, "Efficient
// detection of changes".
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/access.h"

namespace gpulet::cluster {

struct WatchedObject {
  std::string collection;  // its path: "/api/v1/nodes"
  std::string name;
  std::string about;  // for the log: "this node's labels"
  std::string right;  // what get, list and watch are needed on: "nodes"
};

struct WatchTiming {
  Duration request_limit = std::chrono::seconds(10);  // for the list, and for the watch's head
  // How long the server is asked to keep a watch open; then it is begun anew from where it was.
  std::chrono::seconds watch_for{300};
  BackoffLimits backoff{std::chrono::milliseconds(100), std::chrono::seconds(30)};
};

// An object, or a line of the watch, is no larger.
inline constexpr std::size_t kMaxObjectBytes = 4u << 20;

// Loop's thread only; ends when it is destroyed.
class ObjectWatch {
 public:
  // `changed` is called from the loop with the object, or null where there is none, the first time and
  // whenever it may differ. While the API server is away, or refuses (said once in the log), and once the
  // object is deleted, what was last known holds.
  static std::unique_ptr<ObjectWatch> start(Loop& loop, Access access, WatchedObject what, WatchTiming timing,
                                            std::function<void(const nlohmann::json&)> changed);
  virtual ~ObjectWatch() = default;
};

}  // namespace gpulet::cluster
