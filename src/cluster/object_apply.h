// Keeps one object of the cluster as this node wants it: an object of a kind that belongs to the Node, has
// its name, and goes with it. By server-side apply, so that whoever else writes to it keeps what is theirs.
// Needs get on nodes, and create and patch on the kind. Source: Kubernetes API concepts, "Server-Side Apply".
#pragma once

#include <memory>
#include <string>

#include "base/backoff.h"
#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/sending.h"

namespace gpulet::cluster {

struct ApplyTiming {
  SendTiming sending{std::chrono::seconds(10), {std::chrono::seconds(1), std::chrono::seconds(60)}};
  // What is there is written again so often, with the Node looked up anew: a write that changes nothing costs
  // the API server no storage, and an object that somebody took away comes back.
  Duration refresh = std::chrono::minutes(10);
};

struct AppliedKind {
  std::string api_version, kind;  // "gpulet.io/v1alpha1", "GpuNode"
  std::string collection;         // "/apis/gpulet.io/v1alpha1/gpunodes"
};

// Loop's thread only. Never blocks.
class ObjectApply {
 public:
  static std::unique_ptr<ObjectApply> start(Loop& loop, Access access, AppliedKind kind,
                                            ApplyTiming timing = {});
  virtual ~ObjectApply() = default;

  // The object's `spec`, as JSON. The newest wins; tried again until the API server has it.
  virtual void set(std::string spec) = 0;
  virtual Delivery delivery() const = 0;
};

}  // namespace gpulet::cluster
