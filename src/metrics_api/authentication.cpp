#include "metrics_api/authentication.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text.h"
#include "k8s/objects.h"
#include "metrics_api/responses.h"

namespace gpulet::metrics_api {
namespace {

using nlohmann::json;

// A list of strings, stored as JSON in a value of the ConfigMap; empty if absent.
Result<std::vector<std::string>> parse_string_list(const json& data, const char* key) {
  const json& value = json_member(data, key);
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  const auto list = parse_json(json_text(value));
  if (!list.is_array()) return fail(Code::kInvalidArgument, "must be a JSON list of strings", key);
  for (const auto& one : list) {
    if (!one.is_string()) return fail(Code::kInvalidArgument, "must be a JSON list of strings", key);
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

bool equals_ignoring_case(std::string_view a, std::string_view b) { return text::lower(a) == text::lower(b); }

bool contains_name(std::string_view name, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& one) { return equals_ignoring_case(one, name); });
}

// The first non-empty value, in the order of `names`.
std::string first_header_value(const http::Request& request, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    for (const auto& [field, value] : request.fields) {
      if (!value.empty() && equals_ignoring_case(field, name)) return std::string(value);
    }
  }
  return {};
}

}  // namespace

Result<FrontProxy> parse_front_proxy(const json& config_map) {
  const json& data = json_member(config_map, "data");
  FrontProxy proxy;
  proxy.client_ca_pem = json_text(json_member(data, "requestheader-client-ca-file"));
  if (proxy.client_ca_pem.empty()) return FrontProxy{};
  GPULET_TRY_ASSIGN(proxy.allowed_names, parse_string_list(data, "requestheader-allowed-names"));
  GPULET_TRY_ASSIGN(proxy.username_headers, parse_string_list(data, "requestheader-username-headers"));
  GPULET_TRY_ASSIGN(proxy.uid_headers, parse_string_list(data, "requestheader-uid-headers"));
  GPULET_TRY_ASSIGN(proxy.group_headers, parse_string_list(data, "requestheader-group-headers"));
  GPULET_TRY_ASSIGN(proxy.extra_header_prefixes,
                    parse_string_list(data, "requestheader-extra-headers-prefix"));
  if (proxy.username_headers.empty()) {
    return fail(Code::kInvalidArgument, "names no header, so no user can be identified",
                "requestheader-username-headers");
  }
  return proxy;
}

std::optional<User> user_from_front_proxy(const FrontProxy& proxy, const http::Request& request) {
  if (proxy.client_ca_pem.empty() || request.client.empty()) return std::nullopt;
  if (!proxy.allowed_names.empty() &&
      std::ranges::find(proxy.allowed_names, request.client) == proxy.allowed_names.end())
    return std::nullopt;
  User user;
  user.name = first_header_value(request, proxy.username_headers);
  if (user.name.empty()) return std::nullopt;
  user.uid = first_header_value(request, proxy.uid_headers);
  for (const auto& [field, value] : request.fields) {
    if (contains_name(field, proxy.group_headers)) user.groups.emplace_back(value);
    for (const auto& prefix : proxy.extra_header_prefixes) {
      if (field.size() <= prefix.size() || !equals_ignoring_case(field.substr(0, prefix.size()), prefix))
        continue;
      const std::string key = text::lower(field.substr(prefix.size()));
      user.extra[text::decode_percent(key, false).value_or(key)].emplace_back(value);
      break;
    }
  }
  return user;
}

User add_authenticated_group(User user) {
  const auto has = [&](std::string_view group) {
    return std::ranges::find(user.groups, group) != user.groups.end();
  };
  if (user.name == "system:anonymous" || has("system:authenticated") || has("system:unauthenticated"))
    return user;
  user.groups.emplace_back("system:authenticated");
  return user;
}

std::optional<std::string> bearer_token(const http::Request& request) {
  constexpr std::string_view kBearer = "bearer ";
  for (const auto& [field, value] : request.fields) {
    if (!equals_ignoring_case(field, "authorization")) continue;
    if (text::lower(value.substr(0, kBearer.size())) != kBearer) return std::nullopt;
    const auto token = text::trim(value.substr(kBearer.size()));
    if (token.empty() || token.size() > kMaxTokenBytes) return std::nullopt;
    return std::string(token);
  }
  return std::nullopt;
}

namespace {

using nlohmann::json;

constexpr std::string_view kMasters = "system:masters";

// A larger specification is not cached.
constexpr std::size_t kMaxKeyBytes = 8192;

std::vector<std::string> string_list(const json& list) {
  std::vector<std::string> texts;
  if (!list.is_array()) return texts;
  for (const auto& one : list) texts.push_back(json_text(one));
  return texts;
}

std::optional<User> user_from_status(const json& status) {
  if (json_member(status, "authenticated") != json(true)) return std::nullopt;
  const json& fields = json_member(status, "user");
  User user{.name = json_text(json_member(fields, "username")),
            .uid = json_text(json_member(fields, "uid")),
            .groups = string_list(json_member(fields, "groups")),
            .extra = {}};
  if (user.name.empty()) return std::nullopt;
  if (const json& extra = json_member(fields, "extra"); extra.is_object()) {
    for (const auto& [key, values] : extra.items()) user.extra[key] = string_list(values);
  }
  return user;
}

json access_review_spec(const User& user, const RequestedAction& action) {
  json spec = {{"user", user.name}, {"uid", user.uid}, {"groups", user.groups}, {"extra", user.extra}};
  if (!action.path.empty()) {
    spec["nonResourceAttributes"] = {{"path", action.path}, {"verb", "get"}};
  } else {
    spec["resourceAttributes"] = {{"namespace", action.name_space},
                                  {"verb", "get"},
                                  {"group", kGroup},
                                  {"version", action.version},
                                  {"resource", "pods"},
                                  {"subresource", action.metric},
                                  {"name", action.pod}};
  }
  return spec;
}

k8s::ApiRequest review_request(const char* path, const char* version, const char* kind, const json& spec) {
  return {.method = "POST",
          .path = path,
          .content_type = "application/json",
          .body = k8s::serialize_json({{"apiVersion", version}, {"kind", kind}, {"spec", spec}})};
}

// The status of a returned review.
Result<json> review_status(const Result<http::ClientResponse>& response, const char* right) {
  if (!response) return fail(response.error());
  if (response->status == 403) {
    return fail(Code::kUnavailable, std::string("missing permission: create on ") + right + ": " +
                                        k8s::describe_response(*response));
  }
  if (response->status / 100 != 2) return fail(Code::kUnavailable, k8s::describe_response(*response));
  return json_member(parse_json(response->body), "status");
}

}  // namespace

template <class Value>
const Value* AccessReviewer::find_cached(const Cache<Value>& cache, const std::string& key) const {
  const auto found = cache.find(key);
  return found != cache.end() && loop_.now() < found->second.until ? &found->second.value : nullptr;
}

template <class Value>
void AccessReviewer::store_cached(Cache<Value>& cache, const std::string& key, Value value) {
  if (key.size() > kMaxKeyBytes) return;
  if (cache.size() >= kMaxCachedReviews) {
    std::erase_if(cache, [this](const auto& entry) { return entry.second.until <= loop_.now(); });
  }
  if (cache.size() >= kMaxCachedReviews) {
    cache.erase(std::ranges::min_element(cache, {}, [](const auto& entry) { return entry.second.until; }));
  }
  cache[key] = {std::move(value), loop_.now() + kReviewLifetime};
}

void AccessReviewer::authenticate_token(const std::string& token,
                                        const std::function<void(Result<std::optional<User>>)>& done) {
  if (const User* user = find_cached(users_, token)) return done(*user);
  token_requests_.submit_request(
      review_request("/apis/authentication.k8s.io/v1/tokenreviews", "authentication.k8s.io/v1", "TokenReview",
                     {{"token", token}}),
      [this, token, done](const Result<http::ClientResponse>& response) {
        const auto status = review_status(response, "tokenreviews.authentication.k8s.io");
        if (!status) return done(fail(status.error()));
        auto user = user_from_status(*status);
        if (user) store_cached(users_, token, *user);
        done(std::move(user));
      });
}

void AccessReviewer::authorize_action(const User& user, const RequestedAction& action,
                                      const std::function<void(Result<bool>)>& done) {
  if (std::ranges::find(user.groups, kMasters) != user.groups.end()) return done(true);
  const json spec = access_review_spec(user, action);
  const std::string key = k8s::serialize_json(spec);
  if (const bool* allowed = find_cached(allowed_, key)) return done(*allowed);
  access_requests_.submit_request(review_request("/apis/authorization.k8s.io/v1/subjectaccessreviews",
                                                 "authorization.k8s.io/v1", "SubjectAccessReview", spec),
                                  [this, key, done](const Result<http::ClientResponse>& response) {
                                    const auto status =
                                        review_status(response, "subjectaccessreviews.authorization.k8s.io");
                                    if (!status) return done(fail(status.error()));
                                    const bool allowed = json_member(*status, "allowed") == json(true);
                                    store_cached(allowed_, key, allowed);
                                    done(allowed);
                                  });
}

}  // namespace gpulet::metrics_api
