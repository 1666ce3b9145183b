#include "metrics_api/service.h"

#include <algorithm>
#include <set>
#include <utility>

namespace gpulet::metrics_api {
namespace {

// May do everything; Kubernetes' own extension servers do not ask either.
constexpr const char* kMasters = "system:masters";

web::Answer json_answer(std::string body, int status = 200) {
  return {.status = status,
          .content_type = "application/json",
          .body = std::make_shared<const std::string>(std::move(body))};
}

web::Answer refusal(int status, std::string_view reason, std::string_view message) {
  return json_answer(failure(status, reason, message), status);
}

web::Answer text_answer(int status, const char* text) {
  return {.status = status, .body = std::make_shared<const std::string>(text)};
}

web::Answer failure_of(const Error& error) {
  switch (error.code()) {
    case Code::kInvalidArgument:
      return refusal(400, "BadRequest", error.text());
    case Code::kPermissionDenied:
    case Code::kUnsupported:
      return refusal(500, "InternalError", error.text());
    default:
      return refusal(503, "ServiceUnavailable", error.text());
  }
}

Action action_of(const Target& target, const std::string& path) {
  if (const auto* asked = std::get_if<PodMetric>(&target)) {
    return {.path = {},
            .version = asked->version,
            .name_space = asked->name_space,
            .pod = asked->pod,
            .metric = asked->metric};
  }
  return {.path = path, .version = {}, .name_space = {}, .pod = {}, .metric = {}};
}

std::vector<PodValue> values_of(const PodMetric& asked, Metric metric, const std::vector<ListedPod>& pods,
                                const Pages::Found& pages) {
  std::vector<PodValue> values;
  for (const auto& pod : pods) {
    const auto node = pages.find(pod.node);
    if (node == pages.end()) continue;
    const auto told = node->second->page.pods.find({asked.name_space, pod.name});
    if (told == node->second->page.pods.end()) continue;
    if (const auto value = told->second.find(metric); value != told->second.end()) {
      values.push_back({pod.name, value->second, node->second->measured});
    }
  }
  std::ranges::sort(values, {}, &PodValue::pod);
  return values;
}

}  // namespace

void MetricsService::trust(FrontProxy proxy) {
  proxy_ = std::move(proxy);
  trusts_ = true;
}

void MetricsService::serve(const web::Request& request, Time, const web::Reply& reply) {
  if (request.method != "GET" && request.method != "HEAD") {
    return reply(refusal(405, "MethodNotAllowed", "these metrics can only be read"));
  }
  const auto target = parse_target(request.target);
  if (target && std::holds_alternative<Health>(*target)) {
    const bool good = trusts_ || !std::get<Health>(*target).ready;
    return reply(good ? text_answer(200, "ok")
                      : text_answer(503, "whom to trust is not known yet: the API server has not said it\n"));
  }
  // Who may not ask is not told what was wrong with it.
  const Target asked = target ? *target : Target(Unknown{});
  const web::Reply checked = target ? reply : [reply, error = target.error()](const web::Answer& answer) {
    reply(answer.status == 404 ? failure_of(error) : answer);
  };
  const std::string path(path_of(request.target));
  if (const auto user = proxied_user(proxy_, request))
    return authorize(authenticated(*user), asked, path, checked);
  const auto token = bearer_token(request);
  if (!token) return reply(refusal(401, "Unauthorized", "who asks is not known"));
  reviews_.user_of(*token, [this, asked, path, checked](const Result<std::optional<User>>& user) {
    if (!user) return checked(failure_of(user.error()));
    if (!*user) return checked(refusal(401, "Unauthorized", "the token is nobody's"));
    authorize(authenticated(**user), asked, path, checked);
  });
}

void MetricsService::authorize(const User& user, const Target& target, const std::string& path,
                               const web::Reply& reply) {
  if (std::ranges::find(user.groups, kMasters) != user.groups.end()) return answer(target, reply);
  reviews_.may(user, action_of(target, path),
               [this, name = user.name, target, reply](const Result<bool>& may) {
                 if (!may) return reply(failure_of(may.error()));
                 if (*may) return answer(target, reply);
                 reply(refusal(403, "Forbidden", "User \"" + name + "\" may not get this"));
               });
}

void MetricsService::answer(const Target& target, const web::Reply& reply) {
  if (std::holds_alternative<Groups>(target)) return reply(json_answer(group_list()));
  if (std::holds_alternative<Group>(target)) return reply(json_answer(group()));
  if (const auto* resources = std::get_if<Resources>(&target)) {
    return reply(json_answer(resource_list(resources->version)));
  }
  const auto* asked = std::get_if<PodMetric>(&target);
  const auto metric = asked != nullptr ? metric_by_name(asked->metric) : std::nullopt;
  if (!metric) return reply(refusal(404, "NotFound", "the server could not find the requested resource"));
  find_pods(*asked, *metric, reply);
}

void MetricsService::find_pods(const PodMetric& asked, Metric metric, const web::Reply& reply) {
  list_pods(pods_,
            {.name_space = asked.name_space,
             .label_selector = asked.selector,
             .name = asked.all() ? std::string() : asked.pod},
            [this, asked, metric, reply](const Result<std::vector<ListedPod>>& pods) {
              if (!pods) return reply(failure_of(pods.error()));
              ask_agents(asked, metric, *pods, reply);
            });
}

void MetricsService::ask_agents(const PodMetric& asked, Metric metric, const std::vector<ListedPod>& pods,
                                const web::Reply& reply) {
  std::set<std::string> nodes;
  for (const auto& pod : pods) {
    if (!pod.node.empty()) nodes.insert(pod.node);
  }
  pages_.get(nodes, [asked, metric, pods, reply](const Result<Pages::Found>& pages) {
    if (!pages) return reply(failure_of(pages.error()));
    const auto values = values_of(asked, metric, pods, *pages);
    if (values.empty() && !asked.all()) {
      return reply(refusal(404, "NotFound",
                           asked.metric + " of Pod " + asked.name_space + "/" + asked.pod + " is not known"));
    }
    reply(json_answer(metric_values(asked, values)));
  });
}

}  // namespace gpulet::metrics_api
