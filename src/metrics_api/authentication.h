// Who sends a request, and whether they may: the front proxy, bearer tokens, and reviews by the API server.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration

#include "base/loop.h"
#include "base/result.h"
#include "http/message.h"
#include "metrics_api/request_pool.h"

namespace gpulet::metrics_api {

// Identifies the user of a request: by headers of the front proxy (the aggregating API server), or by a
// bearer token, which AccessReviewer verifies. Pure.
// Source: Kubernetes, "Configure the aggregation layer"; the ConfigMap extension-apiserver-authentication.

struct User {
  std::string name, uid;
  std::vector<std::string> groups;
  std::map<std::string, std::vector<std::string>> extra;
  friend bool operator==(const User&, const User&) = default;
};

// How the front proxy is verified, and which headers it sets. Without a CA nobody is trusted.
struct FrontProxy {
  std::string client_ca_pem;               // PEM
  std::vector<std::string> allowed_names;  // of its client certificate; empty: any signed by the CA
  std::vector<std::string> username_headers, uid_headers, group_headers, extra_header_prefixes;
  friend bool operator==(const FrontProxy&, const FrontProxy&) = default;
};

// Parses that ConfigMap; a missing one, or one without a CA, trusts nobody. Errors: kInvalidArgument, about
// the key, for a malformed list and for missing headers.
Result<FrontProxy> parse_front_proxy(const nlohmann::json& config_map);

// nullopt if the client is not the front proxy or names no user.
std::optional<User> user_from_front_proxy(const FrontProxy& proxy, const http::Request& request);

// Adds the group system:authenticated, as every extension server does: the API server itself requests
// discovery as a user without groups.
User add_authenticated_group(User user);

// Longer tokens are invalid.
inline constexpr std::size_t kMaxTokenBytes = 16u << 10;
std::optional<std::string> bearer_token(const http::Request& request);

// Verifies tokens and permissions with the API server: which user a token belongs to, and what a user may
// do. Results are cached for a short time, as in Kubernetes' own extension servers.
// Source: authentication.k8s.io/v1 TokenReview, authorization.k8s.io/v1 SubjectAccessReview. Needs create on
// both: the ClusterRole system:auth-delegator.

inline constexpr Duration kReviewLifetime = std::chrono::seconds(10);
inline constexpr std::size_t kMaxCachedReviews = 512;  // of each kind; the oldest goes first
// Of the pool for tokens, which unknown users send too.
inline constexpr RequestPoolLimits kTokenLimits{.connections = 2, .queued = 32};

// What a request does: `path` if it is not a Pod metric.
struct RequestedAction {
  std::string path;
  std::string version, name_space, pod, metric;
};

// Loop thread only. Callbacks come at once or later, once each; never after this object is gone. Errors of
// both: kUnavailable if the API server does not respond or denies the review.
class AccessReviewer {
 public:
  // `tokens` and `rights` must outlive this. They are separate pools, so that unknown tokens delay nobody
  // else.
  AccessReviewer(Loop& loop, RequestPool& tokens, RequestPool& rights)
      : loop_(loop), token_requests_(tokens), access_requests_(rights) {}
  AccessReviewer(const AccessReviewer&) = delete;

  // nullopt: the token is invalid.
  void authenticate_token(const std::string& token,
                          const std::function<void(Result<std::optional<User>>)>& done);
  // The group system:masters may do everything, without a review, as in Kubernetes' own extension servers.
  void authorize_action(const User& user, const RequestedAction& action,
                        const std::function<void(Result<bool>)>& done);

 private:
  template <class Value>
  struct Cached {
    Value value;
    Time until;
  };
  template <class Value>
  using Cache = std::map<std::string, Cached<Value>, std::less<>>;
  template <class Value>
  const Value* find_cached(const Cache<Value>& cache, const std::string& key) const;
  template <class Value>
  void store_cached(Cache<Value>& cache, const std::string& key, Value value);

  Loop& loop_;
  RequestPool& token_requests_;
  RequestPool& access_requests_;
  Cache<User> users_;    // by token; only valid tokens
  Cache<bool> allowed_;  // by the review's specification
};

}  // namespace gpulet::metrics_api
