// Reads single objects of the API server by name, and counts nodes by a label: what must be known of a Pod
// before anything is told or asked of it.
//
// One request at a time, and nothing is tried again here: whoever asks knows for how long the answer matters.
// Needs get on pods, get on namespaces and list on nodes, each only where it is called.
// Source: Kubernetes API concepts, "Receiving resources as Tables": of counted nodes only the rows come.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "cluster/access.h"
#include "cluster/pod_ref.h"

namespace gpulet::cluster {

inline constexpr std::size_t kMaxReads = 1024;  // that wait
inline constexpr std::size_t kCountPage = 500;  // nodes of one request
inline constexpr std::size_t kMaxCounted = 100 * kCountPage;

using Annotations = std::map<std::string, std::string>;

struct PodFacts {
  PodRef pod;
  std::string owner;     // the kind of its controller: "ReplicaSet"; empty without one
  bool mirror = false;   // a static Pod, as the API server shows it
  bool leaving = false;  // its deletion has begun
  Annotations annotations;
  std::map<std::string, std::string> labels;
};

// Loop's thread only. Callbacks come on the loop, once each and never from inside the call; none after
// destruction. Errors of all: kPermissionDenied, about the right that is missing; kUnavailable, kIo and
// others of the connection; kUnavailable when more than kMaxReads wait.
class Reader {
 public:
  static std::unique_ptr<Reader> start(Loop& loop, Access access,
                                       Duration request_limit = std::chrono::seconds(10));
  virtual ~Reader() = default;

  // nullopt: there is none by that name on this node.
  virtual void pod(const std::string& name_space, const std::string& name,
                   std::function<void(Result<std::optional<PodFacts>>)> done) = 0;
  // Of a namespace that is not there: none.
  virtual void namespace_annotations(const std::string& name_space,
                                     std::function<void(Result<Annotations>)> done) = 0;
  // How many nodes a label selector picks, at most kMaxCounted: "gpulet.io/gpu-health in (lost,withdrawn)".
  virtual void count_nodes(const std::string& selector, std::function<void(Result<std::size_t>)> done) = 0;
};

}  // namespace gpulet::cluster
