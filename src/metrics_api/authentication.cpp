#include "metrics_api/authentication.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cluster/objects.h"
#include "metrics_api/target.h"

namespace gpulet::metrics_api {
namespace {

using nlohmann::json;

// A list of texts, written as JSON in a value of the ConfigMap; one that is not there is empty.
Result<std::vector<std::string>> texts_of(const json& data, const char* key) {
  const json& value = cluster::member(data, key);
  std::vector<std::string> texts;
  if (value.is_null()) return texts;
  const auto list = json::parse(cluster::text_of(value), nullptr, false);
  if (!list.is_array()) return fail(Code::kInvalidArgument, "must be a JSON list of texts", key);
  for (const auto& one : list) {
    if (!one.is_string()) return fail(Code::kInvalidArgument, "must be a JSON list of texts", key);
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

bool same_name(std::string_view a, std::string_view b) { return text::lower(a) == text::lower(b); }

bool is_one_of(std::string_view name, const std::vector<std::string>& names) {
  return std::ranges::any_of(names, [&](const std::string& one) { return same_name(one, name); });
}

// The first that is not empty, by the order of `names`.
std::string first_value(const web::Request& request, const std::vector<std::string>& names) {
  for (const auto& name : names) {
    for (const auto& [field, value] : request.fields) {
      if (!value.empty() && same_name(field, name)) return std::string(value);
    }
  }
  return {};
}

}  // namespace

Result<FrontProxy> front_proxy_of(const json& config_map) {
  const json& data = cluster::member(config_map, "data");
  FrontProxy proxy;
  proxy.authorities = cluster::text_of(cluster::member(data, "requestheader-client-ca-file"));
  if (proxy.authorities.empty()) return FrontProxy{};
  GPULET_TRY_ASSIGN(proxy.allowed_names, texts_of(data, "requestheader-allowed-names"));
  GPULET_TRY_ASSIGN(proxy.username_fields, texts_of(data, "requestheader-username-headers"));
  GPULET_TRY_ASSIGN(proxy.uid_fields, texts_of(data, "requestheader-uid-headers"));
  GPULET_TRY_ASSIGN(proxy.group_fields, texts_of(data, "requestheader-group-headers"));
  GPULET_TRY_ASSIGN(proxy.extra_prefixes, texts_of(data, "requestheader-extra-headers-prefix"));
  if (proxy.username_fields.empty()) {
    return fail(Code::kInvalidArgument, "names no field, so nobody can be told",
                "requestheader-username-headers");
  }
  return proxy;
}

std::optional<User> proxied_user(const FrontProxy& proxy, const web::Request& request) {
  if (proxy.authorities.empty() || request.client.empty()) return std::nullopt;
  if (!proxy.allowed_names.empty() &&
      std::ranges::find(proxy.allowed_names, request.client) == proxy.allowed_names.end())
    return std::nullopt;
  User user;
  user.name = first_value(request, proxy.username_fields);
  if (user.name.empty()) return std::nullopt;
  user.uid = first_value(request, proxy.uid_fields);
  for (const auto& [field, value] : request.fields) {
    if (is_one_of(field, proxy.group_fields)) user.groups.emplace_back(value);
    for (const auto& prefix : proxy.extra_prefixes) {
      if (field.size() <= prefix.size() || !same_name(field.substr(0, prefix.size()), prefix)) continue;
      const std::string key = text::lower(field.substr(prefix.size()));
      user.extra[unescaped(key, false).value_or(key)].emplace_back(value);
      break;
    }
  }
  return user;
}

User authenticated(User user) {
  const auto has = [&](std::string_view group) {
    return std::ranges::find(user.groups, group) != user.groups.end();
  };
  if (user.name == "system:anonymous" || has("system:authenticated") || has("system:unauthenticated"))
    return user;
  user.groups.emplace_back("system:authenticated");
  return user;
}

std::optional<std::string> bearer_token(const web::Request& request) {
  constexpr std::string_view kBearer = "bearer ";
  for (const auto& [field, value] : request.fields) {
    if (!same_name(field, "authorization")) continue;
    if (text::lower(value.substr(0, kBearer.size())) != kBearer) return std::nullopt;
    const auto token = text::trim(value.substr(kBearer.size()));
    if (token.empty() || token.size() > kMaxTokenBytes) return std::nullopt;
    return std::string(token);
  }
  return std::nullopt;
}

}  // namespace gpulet::metrics_api
