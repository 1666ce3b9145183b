// Watches objects of the API server: a list, then a watch from its resourceVersion, over one connection
// without a thread. Source: Kubernetes API concepts, "Efficient detection of changes", "Retrieving large
// results sets in chunks", "Watch bookmarks".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "k8s/client_config.h"

namespace gpulet::k8s {

struct WatchedObject {
  std::string collection;  // its path: "/api/v1/nodes"
  std::string name;
  std::string description;  // for the log: "this node's labels"
  std::string resource;     // for the log: get, list and watch are needed on "nodes"
  bool metadata = false;    // request only the object's metadata
};

struct WatchTiming {
  Duration request_limit = std::chrono::seconds(10);  // for the list, and for the head of the watch
  // How long the server keeps a watch open; then the next one continues from there.
  std::chrono::seconds watch_for{300};
  BackoffLimits backoff{std::chrono::milliseconds(100), std::chrono::seconds(30)};
};

// Limit of an object, and of a line of the watch.
inline constexpr std::size_t kMaxObjectBytes = 4u << 20;

// Watches one object by name. Needs get, list and watch on it. Loop's thread only.
class ObjectWatcher {
 public:
  // Calls `changed` from the loop with the object, or null where there is none: the first time and whenever
  // it may have changed; not when it is deleted. While the API server is unreachable or refuses, which is
  // logged once, nothing is called.
  static std::unique_ptr<ObjectWatcher> watch_object(Loop& loop, ClientConfig access, WatchedObject what,
                                                     WatchTiming timing,
                                                     std::function<void(const nlohmann::json&)> changed);
  virtual ~ObjectWatcher() = default;
};

using Labels = std::map<std::string, std::string>;

// Watches the labels of this node. Needs get, list and watch on nodes. Loop's thread only.
class NodeLabelWatcher {
 public:
  // Calls `changed` from the loop with all labels: the first time and whenever they differ. While the API
  // server is unreachable or refuses, which is logged once with the missing permission, the last labels
  // stay valid.
  static std::unique_ptr<NodeLabelWatcher> watch_node_labels(Loop& loop, const ClientConfig& access,
                                                             WatchTiming timing,
                                                             std::function<void(const Labels&)> changed);
  virtual ~NodeLabelWatcher() = default;
};

struct Collection {
  std::string path;        // "/api/v1/pods"
  std::string query{};     // of list and watch, encoded: "fieldSelector=spec.nodeName%21%3D"
  std::string permission;  // for the log: "list and watch on pods"
  bool metadata = false;   // request only the objects' metadata
};

struct CollectionTiming {
  Duration request_limit = std::chrono::seconds(10);  // for a response's head
  Duration page_limit = std::chrono::seconds(60);     // for a whole page of the list
  std::chrono::seconds watch_for{300};                // how long the server keeps a watch open
  BackoffLimits backoff{std::chrono::milliseconds(100), std::chrono::seconds(30)};
  unsigned page = 500;  // objects
};

// Limit of one object.
inline constexpr std::size_t kMaxCollectedBytes = 4u << 20;

struct CollectionEvents {
  // All are called while a response is read: none may destroy the watcher.
  std::function<void()> on_list_begin{};  // objects that on_object does not report until on_list_end are gone
  std::function<void(std::string_view)> on_object{};  // JSON of an object that is listed, added or modified
  std::function<void(std::string_view)>
      on_deleted{};                     // the last state of an object that was deleted or no longer matches
  std::function<void()> on_list_end{};  // the list is complete; changes follow
  // The watch broke off: its server has ended, perhaps, and the next one may be another version.
  std::function<void()> on_connection_lost{};
};

// Watches all objects of a collection: a list in pages, then a watch, with the memory of one object. Lists
// again when the watch has fallen too far behind. Loop's thread only.
class CollectionWatcher {
 public:
  static std::unique_ptr<CollectionWatcher> watch_collection(Loop& loop, ClientConfig access,
                                                             Collection collection, CollectionTiming timing,
                                                             CollectionEvents events);
  virtual ~CollectionWatcher() = default;

  virtual std::uint64_t completed_lists() const = 0;
  // Why listing fails now; empty while it does not.
  virtual const std::string& current_error() const = 0;
};

}  // namespace gpulet::k8s
