// Who asks: as the front proxy (the API server, which aggregates us) says by fields of the request, or by a
// bearer token, which reviews.h has judged. Pure.
// Source: Kubernetes, "Configure the aggregation layer"; the ConfigMap extension-apiserver-authentication.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>  // tidy: heavy-header because it is the forward declaration
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "web/service.h"

namespace gpulet::metrics_api {

struct User {
  std::string name, uid;
  std::vector<std::string> groups;
  std::map<std::string, std::vector<std::string>> extra;
  friend bool operator==(const User&, const User&) = default;
};

// Whom to believe who a user is, and where it is said. Without authorities: nobody.
struct FrontProxy {
  std::string authorities;                 // PEM: of its client certificate
  std::vector<std::string> allowed_names;  // of its certificate; empty: any that they have signed
  std::vector<std::string> username_fields, uid_fields, group_fields, extra_prefixes;
  friend bool operator==(const FrontProxy&, const FrontProxy&) = default;
};

// From that ConfigMap's data; one that is not there, or has no authority, trusts nobody. Errors:
// kInvalidArgument, about the key, for a list that is none, and for fields that are missing.
Result<FrontProxy> front_proxy_of(const nlohmann::json& config_map);

// nullopt where the client is not the front proxy, or does not say who the user is.
std::optional<User> proxied_user(const FrontProxy& proxy, const web::Request& request);

// With the group system:authenticated, as every extension server adds it for whoever is known: the API server
// itself asks for discovery as a user without a group.
User authenticated(User user);

// Longer ones are nobody's.
inline constexpr std::size_t kMaxTokenBytes = 16u << 10;
std::optional<std::string> bearer_token(const web::Request& request);

}  // namespace gpulet::metrics_api
