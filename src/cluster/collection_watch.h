// Follows all objects of a collection: a list in pages, then a watch that goes on from it, over one
// connection without a thread and with the memory of one object. A watch that has fallen too far behind is a
// list again. Source: Kubernetes API concepts, "Efficient detection of changes", "Retrieving large results
// sets in chunks", "Watch bookmarks".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/access.h"

namespace gpulet::cluster {

struct Collection {
  std::string path;       // "/api/v1/pods"
  std::string query{};    // of list and watch: "fieldSelector=spec.nodeName%21%3D"
  std::string right;      // that is needed, for the log: "list and watch on pods"
  bool metadata = false;  // only the objects' metadata come
};

struct CollectionTiming {
  Duration request_limit = std::chrono::seconds(10);  // for a response's head
  Duration page_limit = std::chrono::seconds(60);     // for one page of the list, whole
  std::chrono::seconds watch_for{
      300};  // how long the server is asked to keep a watch open; then it is begun anew
  BackoffLimits backoff{std::chrono::milliseconds(100), std::chrono::seconds(30)};
  unsigned page = 500;  // objects
};

// An object is no larger.
inline constexpr std::size_t kMaxCollectedBytes = 4u << 20;

struct CollectionEvents {
  // All are called from inside the reading of a response: none may destroy the watch.
  std::function<void()> listing{};                // a list begins: what it does not find is gone
  std::function<void(std::string_view)> found{};  // an object as JSON: listed, added or changed
  std::function<void(std::string_view)>
      gone{};                      // one that was deleted, or is no longer selected, as it was last
  std::function<void()> listed{};  // the list is whole; from here on changes come
};

// Loop's thread only; ends when it is destroyed.
class CollectionWatch {
 public:
  static std::unique_ptr<CollectionWatch> start(Loop& loop, Access access, Collection collection,
                                                CollectionTiming timing, CollectionEvents events);
  virtual ~CollectionWatch() = default;

  virtual std::uint64_t lists() const = 0;  // that were whole
  // What stands in the way now; empty while nothing does.
  virtual const std::string& trouble() const = 0;
};

}  // namespace gpulet::cluster
