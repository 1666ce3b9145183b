#include "extender/service.h"

#include <chrono>
#include <optional>

#include "base/text.h"
#include "scheduler/filter.h"

namespace gpulet::extender {
namespace {

using scheduler::ExtenderArgs;

web::Answer text(int status, std::string body) {
  return {.status = status, .body = std::make_shared<const std::string>(std::move(body))};
}

web::Answer json(std::string body) {
  web::Answer answer = text(200, std::move(body));
  answer.content_type = "application/json";
  return answer;
}

std::optional<unsigned> hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return std::nullopt;
}

// The value of a query's parameter, decoded; empty where there is none.
std::string parameter(std::string_view target, std::string_view name) {
  const auto question = target.find('?');
  if (question == std::string_view::npos) return {};
  for (const auto& pair : text::split(target.substr(question + 1), '&')) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos || std::string_view(pair).substr(0, equals) != name) continue;
    std::string value;
    for (std::size_t i = equals + 1; i < pair.size(); ++i) {
      const auto high = pair[i] == '%' && i + 2 < pair.size() ? hex(pair[i + 1]) : std::nullopt;
      const auto low = high ? hex(pair[i + 2]) : std::nullopt;
      value += low ? static_cast<char>(*high * 16 + *low) : (pair[i] == '+' ? ' ' : pair[i]);
      if (low) i += 2;
    }
    return value;
  }
  return {};
}

}  // namespace

ExtenderService::ExtenderService(ServicePorts ports, std::string policy, std::size_t nodes_to_score)
    : ports_(std::move(ports)),
      policy_(std::move(policy)),
      nodes_to_score_(nodes_to_score),
      events_(ports_.event) {}

void ExtenderService::serve(const web::Request& request, Time, const web::Reply& reply) {
  const auto path = request.target.substr(0, request.target.find('?'));
  if (path == "/filter" || path == "/prioritize") {
    if (request.method != "POST") return reply(text(405, "POST is what this answers\n"));
    const Time begun = ports_.loop.now();
    const bool filters = path == "/filter";
    web::Answer answer = filters ? filter(request) : prioritize(request);
    if (answer.status == 200) {
      (filters ? numbers_.filter : numbers_.prioritize).add(ports_.loop.now() - begun);
    } else {
      ++numbers_.bad_requests;
    }
    return reply(std::move(answer));
  }
  if (request.method != "GET" && request.method != "HEAD")
    return reply(text(405, "GET is what this answers\n"));
  if (path == "/healthz") return reply(text(200, "ok\n"));
  if (path == "/readyz") return reply(ready());
  if (path == "/metrics") return reply(metrics());
  if (path == "/explain") return explain(request, reply);
  reply(text(404, "there are /filter, /prioritize, /explain, /metrics, /healthz and /readyz\n"));
}

scheduler::ChosenPolicy ExtenderService::policy_of(scheduler::PodRequest& pod) const {
  if (!pod.policy.empty()) return {pod.policy, "of the Pod"};
  const auto& of_namespace = ports_.feed.policy_of(pod.name_space);
  if (of_namespace.empty()) return {policy_, "the default"};
  const auto policy = scheduler::parse_policy(of_namespace);
  if (policy) return {*policy, "of the namespace"};
  pod.malformed.push_back({std::string(scheduler::kPolicyAnnotation) + " of namespace " + pod.name_space,
                           of_namespace, policy.error().message()});
  return {policy_, "the default"};
}

web::Answer ExtenderService::filter(const web::Request& request) {
  auto args = ExtenderArgs::parse(std::string(request.body));
  if (!args) return text(400, args.error().text() + "\n");
  auto pod = args->pod();
  const auto policy = policy_of(pod);
  const scheduler::Filter filter(pod);
  std::vector<std::size_t> passed;
  std::vector<ExtenderArgs::Failed> failed;
  passed.reserve(args->nodes().size());
  for (std::size_t i = 0; i < args->nodes().size(); ++i) {
    const auto* const node = filter.wants() ? ports_.view.find(args->nodes()[i]) : nullptr;
    if (node == nullptr) {
      ++numbers_.unpublished;
      passed.push_back(i);
      continue;
    }
    auto verdict = filter.judge(*node);
    if (verdict.fits()) {
      passed.push_back(i);
      continue;
    }
    ++numbers_.refused[verdict.refusal];
    failed.push_back({i, verdict.resolvable, std::move(verdict.reason)});
  }
  numbers_.passed += passed.size();
  const Time now = ports_.loop.now();
  if (!pod.malformed.empty()) {
    ++numbers_.malformed;
    events_.malformed(pod, now);
  }
  if (passed.empty() && !failed.empty()) {
    ++numbers_.nowhere;
    events_.nowhere(pod, *args, failed, now);
  }
  if (filter.wants()) passed = worth_scoring(*args, pod, policy.name, std::move(passed));
  return json(args->filter_result(passed, failed));
}

std::vector<std::size_t> ExtenderService::worth_scoring(const ExtenderArgs& args,
                                                        const scheduler::PodRequest& pod,
                                                        std::string_view policy,
                                                        std::vector<std::size_t> passed) {
  if (nodes_to_score_ == 0 || passed.size() <= nodes_to_score_ || pod.prefers_nodes) return passed;
  std::vector<std::string_view> names;
  names.reserve(passed.size());
  for (const auto node : passed) names.push_back(args.nodes()[node]);
  auto best = scheduler::best_of(scorer_.score(ports_.view, pod, policy, names), nodes_to_score_);
  for (auto& place : best) place = passed[place];
  numbers_.left_out += passed.size() - best.size();
  return best;
}

web::Answer ExtenderService::prioritize(const web::Request& request) {
  auto args = ExtenderArgs::parse(std::string(request.body));
  if (!args) return text(400, args.error().text() + "\n");
  auto pod = args->pod();
  const auto policy = policy_of(pod);
  return json(args->priorities(scorer_.score(ports_.view, pod, policy.name, args->nodes())));
}

void ExtenderService::explain(const web::Request& request, const web::Reply& reply) {
  const auto name = parameter(request.target, "pod");
  auto name_space = parameter(request.target, "namespace");
  if (name_space.empty()) name_space = "default";
  const bool as_json = parameter(request.target, "format") == "json";
  if (name.empty()) return reply(text(400, "/explain?namespace=NAMESPACE&pod=POD is what this answers\n"));
  if (const auto* const bound = ports_.view.pod(name_space + "/" + name))
    return reply(explained(*bound, as_json));
  ports_.feed.pod(name_space, name, [this, as_json, reply](const Result<scheduler::PodRequest>& pod) {
    if (pod) return reply(explained(*pod, as_json));
    const auto code = pod.error().code();
    const int status = code == Code::kNotFound ? 404 : (code == Code::kInvalidArgument ? 400 : 503);
    reply(text(status, pod.error().text() + "\n"));
  });
}

web::Answer ExtenderService::explained(const scheduler::PodRequest& pod, bool as_json) {
  auto request = pod;
  const auto policy = policy_of(request);
  const auto explanation = scheduler::explain(ports_.view, scorer_, request, policy);
  return as_json ? json(scheduler::to_json(explanation)) : text(200, scheduler::to_text(explanation));
}

web::Answer ExtenderService::ready() const {
  if (leaving_) return text(503, "told to end\n");
  if (ports_.feed.ready()) return text(200, "ok\n");
  std::string body = "not everything is listed yet\n";
  for (const auto& line : ports_.feed.trouble()) body += line + "\n";
  return text(503, std::move(body));
}

web::Answer ExtenderService::metrics() {
  const auto fed = ports_.feed.numbers();
  numbers_.events = events_.sent();
  web::Answer answer = text(200, page_of(numbers_, {.nodes = ports_.view.nodes(),
                                                    .pods = ports_.view.pods(),
                                                    .pools = ports_.view.pools(),
                                                    .kinds = ports_.view.table().kinds(),
                                                    .lists = fed.lists,
                                                    .objects_refused = fed.refused,
                                                    .ready = ports_.feed.ready()}));
  answer.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return answer;
}

}  // namespace gpulet::extender
