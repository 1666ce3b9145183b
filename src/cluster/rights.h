// Asks the API server which of the rights that somebody needs it would refuse, without using any of them: so
// that a missing one is said at the start, and not when a GPU breaks.
// Source: Kubernetes authorization API, authorization.k8s.io/v1 SelfSubjectAccessReview. Everybody that is
// authenticated may ask of itself (ClusterRole system:basic-user).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "cluster/access.h"
#include "cluster/sending.h"

namespace gpulet::cluster {

// As RBAC names it. With an object's name it is the right to that one alone, without a namespace the right in
// all.
struct Right {
  std::string verb, resource;  // "patch", "nodes/status"
  std::string group{}, name_space{}, name{};
  // "patch on nodes/status"; "create on gpunodes.gpulet.io"; "get on configmaps in monitoring".
  std::string text() const;
  friend bool operator==(const Right&, const Right&) = default;
};

// Where a SelfSubjectAccessReview is posted, and its body.
inline constexpr const char* kReviewPath = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
std::string review_of(const Right& right);

// Loop's thread only.
class RightsReview {
 public:
  // `done` gets what is refused of the newest asked, in that order, once for each ask(). An API server that
  // is away is asked again with backoff for as long as it takes.
  static std::unique_ptr<RightsReview> start(Loop& loop, Access access,
                                             std::function<void(std::vector<Right> refused)> done,
                                             SendTiming timing = {});
  virtual ~RightsReview() = default;

  // In place of what is still being asked.
  virtual void ask(std::vector<Right> rights) = 0;
};

}  // namespace gpulet::cluster
