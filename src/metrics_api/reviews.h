// What the API server says of who may do what: whose a token is, and whether a user may. Answers are kept for
// a short time, as Kubernetes' own extension servers keep them. Source: authentication.k8s.io/v1 TokenReview,
// authorization.k8s.io/v1 SubjectAccessReview. Needs create on both: the ClusterRole system:auth-delegator.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "metrics_api/asker.h"
#include "metrics_api/authentication.h"

namespace gpulet::metrics_api {

inline constexpr Duration kKeptReview = std::chrono::seconds(10);
inline constexpr std::size_t kMaxKeptReviews = 512;  // of each kind; the oldest goes first

// What a request is about: `path` where it is no metric of Pods.
struct Action {
  std::string path;
  std::string version, name_space, pod, metric;
};

// Loop's thread only. Callbacks come at once or later, once each; never when this object is gone before.
// Errors of both: kUnavailable when the API server cannot be asked, or does not let us.
class Reviews {
 public:
  // `tokens` and `rights` ask the API server, and outlive this: two, so that strangers' tokens hold nobody
  // up.
  Reviews(Loop& loop, Asker& tokens, Asker& rights) : loop_(loop), tokens_(tokens), rights_(rights) {}
  Reviews(const Reviews&) = delete;

  // nullopt: nobody's.
  void user_of(const std::string& token, const std::function<void(Result<std::optional<User>>)>& done);
  void may(const User& user, const Action& action, const std::function<void(Result<bool>)>& done);

 private:
  template <class Value>
  struct Kept {
    Value value;
    Time until;
  };
  template <class Value>
  using Cache = std::map<std::string, Kept<Value>, std::less<>>;
  template <class Value>
  const Value* kept(const Cache<Value>& cache, const std::string& key) const;
  template <class Value>
  void keep(Cache<Value>& cache, const std::string& key, Value value);

  Loop& loop_;
  Asker& tokens_;
  Asker& rights_;
  Cache<User> users_;    // by token; only tokens that are somebody's
  Cache<bool> allowed_;  // by the review's specification
};

}  // namespace gpulet::metrics_api
