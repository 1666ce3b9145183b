// Annotates Pods, to tell their owners and controllers what happened to their device. Each write names the
// Pod's uid, so that another Pod of the same name is not changed. Needs patch on pods. Source: Kubernetes
// API core/v1 Pod; merge patch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "k8s/api_client.h"
#include "k8s/objects.h"

namespace gpulet::k8s {

inline constexpr std::size_t kMaxAnnotatedPods = 1024;    // a node runs 110 by default
inline constexpr std::size_t kMaxAnnotationBytes = 4096;  // of one value; longer ones are cut

// Loop's thread only.
class PodAnnotations {
 public:
  static std::unique_ptr<PodAnnotations> start_annotations(Loop& loop, ClientConfig access,
                                                           SendTiming timing = {});
  virtual ~PodAnnotations() = default;

  // nullopt removes the annotation. Never blocks. The newest value of a Pod and key wins. All set for a Pod
  // in one turn of the loop is one request, which is retried until the API server accepts it or the Pod is
  // gone. An accepted value is not sent again. A rejected Pod does not delay others. Beyond
  // kMaxAnnotatedPods the least recently annotated Pod is forgotten. Errors: kInvalidArgument for a text
  // that is not the name of a Pod.
  virtual Status set_annotation(const PodRef& pod, const std::string& key,
                                std::optional<std::string> value) = 0;
  // The Pod is gone: drops what was to be sent for it.
  virtual void forget_pod(const PodRef& pod) = 0;

  virtual SendStatus annotation_status() const = 0;
  virtual std::size_t pod_count() const = 0;  // that are remembered
};

}  // namespace gpulet::k8s
