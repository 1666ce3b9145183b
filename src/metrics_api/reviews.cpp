#include "metrics_api/reviews.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cluster/objects.h"
#include "metrics_api/target.h"

namespace gpulet::metrics_api {
namespace {

using cluster::member;
using cluster::text_of;
using nlohmann::json;

// A larger specification is asked about each time.
constexpr std::size_t kMaxKeyBytes = 8192;

std::vector<std::string> texts_of(const json& list) {
  std::vector<std::string> texts;
  if (!list.is_array()) return texts;
  for (const auto& one : list) texts.push_back(text_of(one));
  return texts;
}

std::optional<User> user_of_status(const json& status) {
  if (member(status, "authenticated") != json(true)) return std::nullopt;
  const json& told = member(status, "user");
  User user{.name = text_of(member(told, "username")),
            .uid = text_of(member(told, "uid")),
            .groups = texts_of(member(told, "groups")),
            .extra = {}};
  if (user.name.empty()) return std::nullopt;
  if (const json& extra = member(told, "extra"); extra.is_object()) {
    for (const auto& [key, values] : extra.items()) user.extra[key] = texts_of(values);
  }
  return user;
}

json specification(const User& user, const Action& action) {
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

cluster::ApiRequest review(const char* path, const char* version, const char* kind, const json& spec) {
  return {.method = "POST",
          .path = path,
          .content_type = "application/json",
          .body = cluster::body_of({{"apiVersion", version}, {"kind", kind}, {"spec", spec}})};
}

// The status of the review that came back.
Result<json> status_of(const Result<cluster::ApiResponse>& response, const char* right) {
  if (!response) return fail(response.error());
  if (response->status == 403) {
    return fail(Code::kUnavailable,
                std::string("needed is create on ") + right + ": " + cluster::said(*response));
  }
  if (response->status / 100 != 2) return fail(Code::kUnavailable, cluster::said(*response));
  return member(json::parse(response->body, nullptr, false), "status");
}

}  // namespace

template <class Value>
const Value* Reviews::kept(const Cache<Value>& cache, const std::string& key) const {
  const auto found = cache.find(key);
  return found != cache.end() && loop_.now() < found->second.until ? &found->second.value : nullptr;
}

template <class Value>
void Reviews::keep(Cache<Value>& cache, const std::string& key, Value value) {
  if (key.size() > kMaxKeyBytes) return;
  if (cache.size() >= kMaxKeptReviews) {
    std::erase_if(cache, [this](const auto& entry) { return entry.second.until <= loop_.now(); });
  }
  if (cache.size() >= kMaxKeptReviews) {
    cache.erase(std::ranges::min_element(cache, {}, [](const auto& entry) { return entry.second.until; }));
  }
  cache[key] = {std::move(value), loop_.now() + kKeptReview};
}

void Reviews::user_of(const std::string& token,
                      const std::function<void(Result<std::optional<User>>)>& done) {
  if (const User* user = kept(users_, token)) return done(*user);
  tokens_.ask(review("/apis/authentication.k8s.io/v1/tokenreviews", "authentication.k8s.io/v1", "TokenReview",
                     {{"token", token}}),
              [this, token, done](const Result<cluster::ApiResponse>& response) {
                const auto status = status_of(response, "tokenreviews.authentication.k8s.io");
                if (!status) return done(fail(status.error()));
                auto user = user_of_status(*status);
                if (user) keep(users_, token, *user);
                done(std::move(user));
              });
}

void Reviews::may(const User& user, const Action& action, const std::function<void(Result<bool>)>& done) {
  const json spec = specification(user, action);
  const std::string key = cluster::body_of(spec);
  if (const bool* allowed = kept(allowed_, key)) return done(*allowed);
  rights_.ask(review("/apis/authorization.k8s.io/v1/subjectaccessreviews", "authorization.k8s.io/v1",
                     "SubjectAccessReview", spec),
              [this, key, done](const Result<cluster::ApiResponse>& response) {
                const auto status = status_of(response, "subjectaccessreviews.authorization.k8s.io");
                if (!status) return done(fail(status.error()));
                const bool allowed = member(*status, "allowed") == json(true);
                keep(allowed_, key, allowed);
                done(allowed);
              });
}

}  // namespace gpulet::metrics_api
