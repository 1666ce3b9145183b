// Notes on Pods: annotations that say to their owner, and to a controller, what happened to their device.
// Needs patch on pods.
//
// Each write names the Pod's uid, so that another Pod of the same name is left alone.
// Source: Kubernetes API core/v1 Pod; merge patch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cluster/pod_ref.h"
#include "cluster/sending.h"

namespace gpulet::cluster {

inline constexpr std::size_t kMaxNotedPods = 1024;  // a node runs 110 by default
inline constexpr std::size_t kMaxNoteBytes = 4096;  // of one note; longer ones are cut

// Loop's thread only.
class PodNotes {
 public:
  static std::unique_ptr<PodNotes> start(Loop& loop, Access access, SendTiming timing = {});
  virtual ~PodNotes() = default;

  // nullopt takes the note away. Never blocks. The newest of a Pod and key wins; all that was set for a Pod
  // in one turn is one request, tried again until the API server has taken it or the Pod is gone. What it
  // took last is not sent again. A Pod that is refused holds no other back. Beyond kMaxNotedPods the Pod that
  // was noted least lately is forgotten. Errors: kInvalidArgument for what cannot be a Pod's name.
  virtual Status set(const PodRef& pod, const std::string& key, std::optional<std::string> value) = 0;
  // The Pod is no more: nothing is sent for it, or remembered of it.
  virtual void forget(const PodRef& pod) = 0;

  virtual Delivery delivery() const = 0;
  virtual std::size_t pods() const = 0;  // that are remembered
};

}  // namespace gpulet::cluster
