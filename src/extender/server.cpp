#include "extender/server.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "scheduler/core/preemption_json.h"

namespace gpulet::extender {
namespace {

constexpr std::size_t kMaxReasons = 5;  // in one message

}  // namespace

std::string unschedulable_message(const scheduler::ExtenderArgs& args,
                                  std::span<const scheduler::ExtenderArgs::FailedNode> failed) {
  std::map<std::string_view, std::pair<std::size_t, std::string_view>>
      reasons;  // number of nodes, and the first
  for (const auto& one : failed) {
    auto& [count, node] = reasons[one.reason];
    if (count++ == 0) node = args.node_names()[one.node];
  }
  std::vector<std::pair<std::string_view, std::pair<std::size_t, std::string_view>>> sorted(reasons.begin(),
                                                                                            reasons.end());
  std::ranges::stable_sort(sorted,
                           [](const auto& a, const auto& b) { return a.second.first > b.second.first; });
  std::string text =
      "no node of " + std::to_string(failed.size()) + (failed.size() == 1 ? " fits: " : " fits: ");
  for (std::size_t i = 0; i < std::min(sorted.size(), kMaxReasons); ++i) {
    const auto& [reason, where] = sorted[i];
    text.append(i == 0 ? "" : "; ").append(where.second);
    if (where.first > 1) text += " and " + std::to_string(where.first - 1) + " more";
    text.append(": ").append(reason);
  }
  if (sorted.size() > kMaxReasons) text += "; and more (see gpulet explain)";
  return text;
}

void PodEventReporter::report_malformed(const scheduler::PodRequest& pod, Time now) {
  std::string message;
  for (const auto& one : pod.malformed) message += (message.empty() ? "" : "; ") + one.message();
  if (!message.empty()) send_event(pod, kMalformedReason, std::move(message), now);
}

void PodEventReporter::report_unschedulable(const scheduler::PodRequest& pod,
                                            const scheduler::ExtenderArgs& args,
                                            std::span<const scheduler::ExtenderArgs::FailedNode> failed,
                                            Time now) {
  if (!failed.empty()) send_event(pod, kUnschedulableReason, unschedulable_message(args, failed), now);
}

void PodEventReporter::send_event(const scheduler::PodRequest& pod, const char* reason, std::string message,
                                  Time now) {
  if (!send_ || pod.uid.empty()) return;
  const std::pair key(pod.uid, std::string(reason));
  const auto known = sent_events_.find(key);
  if (known != sent_events_.end() &&
      now < known->second.at + (known->second.message == message ? kRepeatSame : kRepeatOther)) {
    return;
  }
  if (known == sent_events_.end() && sent_events_.size() >= kMaxSentEvents) {
    std::erase_if(sent_events_, [&](const auto& entry) { return now >= entry.second.at + kRepeatSame; });
    if (sent_events_.size() >= kMaxSentEvents)
      return;  // too many Pods are pending for anybody to read each
               // event
  }
  sent_events_[key] = {message, now};
  ++sent_;
  send_({.warning = true,
         .reason = reason,
         .message = std::move(message),
         .pod = {{pod.name_space, pod.name, pod.uid}}});
}

namespace {

using scheduler::ExtenderArgs;

http::Response text_response(int status, std::string body) {
  return {.status = status, .body = std::make_shared<const std::string>(std::move(body))};
}

http::Response json_response(std::string body) {
  http::Response response = text_response(200, std::move(body));
  response.content_type = "application/json";
  return response;
}

// The decoded value of a query parameter; empty if absent.
std::string query_parameter(std::string_view target, std::string_view name) {
  const auto query_start = target.find('?');
  if (query_start == std::string_view::npos) return {};
  for (const auto& pair : text::split(target.substr(query_start + 1), '&')) {
    const auto equals = pair.find('=');
    if (equals == std::string::npos || std::string_view(pair).substr(0, equals) != name) continue;
    const auto value = std::string_view(pair).substr(equals + 1);
    return text::decode_percent(value, true).value_or(std::string(value));
  }
  return {};
}

}  // namespace

ExtenderService::ExtenderService(ServiceDependencies ports, std::string policy, std::size_t nodes_to_score,
                                 AskTiming asks)
    : dependencies_(std::move(ports)),
      policy_(std::move(policy)),
      nodes_to_score_(nodes_to_score),
      events_(dependencies_.send_event),
      asks_({.loop = dependencies_.loop,
             .send_event = dependencies_.send_event,
             .record = dependencies_.record},
            dependencies_.schedulers, asks) {}

void ExtenderService::on_pod_bound(const scheduler::PodRequest& pod) {
  const auto* const node = dependencies_.cluster.find_node(pod.node);
  if (node == nullptr) return;
  std::set<std::string> resources;
  for (const auto& container : pod.containers) {
    for (const auto& device : container.devices) {
      if (node->find_resource(device.resource)) resources.insert(device.resource.str());
    }
  }
  asks_.on_bound(pod, resources);
}

void ExtenderService::handle_request(const http::Request& request, Time,
                                     const http::ResponseCallback& reply) {
  const auto path = request.target.substr(0, request.target.find('?'));
  if (path == "/filter") return handle_filter(request, reply);
  if (path == "/prioritize")
    return reply(answer_scheduler(request, &ExtenderService::handle_prioritize, metrics_.prioritize));
  if (path == "/preempt")
    return reply(answer_scheduler(request, &ExtenderService::handle_preempt, metrics_.preempt));
  if (request.method != "GET" && request.method != "HEAD") return reply(text_response(405, "use GET\n"));
  if (path == "/healthz") return reply(text_response(200, "ok\n"));
  if (path == "/readyz") return reply(handle_readyz());
  if (path == "/metrics") return reply(handle_metrics());
  if (path == "/explain") return handle_explain(request, reply);
  reply(text_response(
      404, "not found; paths: /filter, /prioritize, /preempt, /explain, /metrics, /healthz, /readyz\n"));
}

http::Response ExtenderService::answer_scheduler(const http::Request& request, Handler handler,
                                                 Histogram& durations) {
  if (request.method != "POST") return text_response(405, "use POST\n");
  const Time begun = dependencies_.loop.now();
  http::Response response = (this->*handler)(request);
  if (response.status == 200) {
    durations.record_duration(dependencies_.loop.now() - begun);
  } else {
    ++metrics_.bad_requests;
  }
  return response;
}

scheduler::SelectedPolicy ExtenderService::select_policy(scheduler::PodRequest& pod) const {
  if (!pod.policy.empty()) return {pod.policy, "from the Pod"};
  const auto& of_namespace = dependencies_.watcher.namespace_policy(pod.name_space);
  if (of_namespace.empty()) return {policy_, "extender default"};
  const auto policy = scheduler::parse_policy(of_namespace);
  if (policy) return {*policy, "from the namespace"};
  pod.malformed.push_back({std::string(scheduler::kPolicyAnnotation) + " of namespace " + pod.name_space,
                           of_namespace, policy.error().message()});
  return {policy_, "extender default"};
}

// Whether the Pod fits on a node as soon as the victims that left it for the Pod are known to be gone.
bool ExtenderService::waits_for_victims(const ExtenderArgs& args) {
  const auto& pod = args.pod_request();
  const auto waits_on = [&](const std::string& name, std::span<const std::string> victims) {
    if (std::ranges::find(args.node_names(), name) == args.node_names().end()) return false;
    const auto* const node = dependencies_.cluster.find_node(name);
    return node != nullptr && !scheduler::Filter(pod).accepts(*node) &&
           scheduler::fits_without(dependencies_.cluster, pod, name, victims);
  };
  if (!pod.nominated_node.empty() && waits_on(pod.nominated_node, {})) return true;
  return std::ranges::any_of(preemptions_.find_answer(pod.uid, dependencies_.loop.now()),
                             [&](const auto& one) { return waits_on(one.node, one.uids); });
}

void ExtenderService::handle_filter(const http::Request& request, const http::ResponseCallback& reply) {
  if (request.method != "POST") return reply(text_response(405, "use POST\n"));
  const Time begun = dependencies_.loop.now();
  const auto args = ExtenderArgs::parse_body(request.body);
  if (!args) {
    ++metrics_.bad_requests;
    return reply(text_response(400, args.error().full_message() + "\n"));
  }
  const bool can_wait = waiting_.size() < kMaxWaitingFilters && request.body.size() <= kMaxWaitingBodyBytes;
  if (can_wait && waits_for_victims(*args)) {
    auto& waiting = waiting_.emplace_back(std::string(request.body), begun, reply);
    ++metrics_.waiting;
    waiting.deadline =
        dependencies_.loop.after(kVictimNewsWait, [this, &waiting] { answer_waiting(waiting); });
    return;
  }
  auto response = filter_nodes(*args);
  metrics_.filter.record_duration(dependencies_.loop.now() - begun);
  reply(std::move(response));
}

void ExtenderService::answer_waiting(WaitingFilter& waiting) {
  std::list<WaitingFilter> answered;
  answered.splice(answered.begin(), waiting_,
                  std::ranges::find(waiting_, &waiting, [](auto& one) { return &one; }));
  auto response = filter_nodes(waiting.args);
  metrics_.filter.record_duration(dependencies_.loop.now() - waiting.begun);
  waiting.reply(std::move(response));
}

void ExtenderService::on_pod_left() {
  for (auto next = waiting_.begin(); next != waiting_.end();) {
    auto& waiting = *next++;
    if (!waits_for_victims(waiting.args)) answer_waiting(waiting);
  }
}

http::Response ExtenderService::filter_nodes(const ExtenderArgs& args) {
  auto pod = args.pod_request();
  asks_.on_asked(pod);
  const auto policy = select_policy(pod);
  const scheduler::Filter filter(pod);
  std::vector<std::size_t> passed;
  std::vector<ExtenderArgs::FailedNode> failed;
  passed.reserve(args.node_names().size());
  for (std::size_t i = 0; i < args.node_names().size(); ++i) {
    const auto* const node =
        filter.requests_devices() ? dependencies_.cluster.find_node(args.node_names()[i]) : nullptr;
    auto verdict = node != nullptr ? filter.check_node(*node) : filter.check_unpublished();
    if (node == nullptr && verdict.fits()) {
      ++metrics_.unpublished;
      passed.push_back(i);
      continue;
    }
    if (verdict.fits()) {
      passed.push_back(i);
      continue;
    }
    ++metrics_.rejected[verdict.reject_reason];
    failed.push_back({i, verdict.resolvable, std::move(verdict.reason)});
  }
  metrics_.passed += passed.size();
  const Time now = dependencies_.loop.now();
  if (!pod.malformed.empty()) {
    ++metrics_.malformed;
    events_.report_malformed(pod, now);
  }
  if (passed.empty() && !failed.empty()) {
    ++metrics_.unschedulable;
    events_.report_unschedulable(pod, args, failed, now);
  }
  if (filter.requests_devices()) passed = select_best_nodes(args, pod, policy.name, std::move(passed));
  return json_response(args.filter_result_json(passed, failed));
}

std::vector<std::size_t> ExtenderService::select_best_nodes(const ExtenderArgs& args,
                                                            const scheduler::PodRequest& pod,
                                                            std::string_view policy,
                                                            std::vector<std::size_t> passed) {
  if (nodes_to_score_ == 0 || passed.size() <= nodes_to_score_ || pod.prefers_nodes) return passed;
  std::vector<std::string_view> names;
  names.reserve(passed.size());
  for (const auto node : passed) names.push_back(args.node_names()[node]);
  auto best =
      scheduler::select_best(scorer_.score_nodes(dependencies_.cluster, pod, policy, names), nodes_to_score_);
  for (auto& place : best) place = passed[place];
  metrics_.not_scored += passed.size() - best.size();
  return best;
}

http::Response ExtenderService::handle_prioritize(const http::Request& request) {
  auto args = ExtenderArgs::parse_body(request.body);
  if (!args) return text_response(400, args.error().full_message() + "\n");
  auto pod = args->pod_request();
  const auto policy = select_policy(pod);
  return json_response(args->priorities_json(
      scorer_.score_nodes(dependencies_.cluster, pod, policy.name, args->node_names())));
}

http::Response ExtenderService::handle_preempt(const http::Request& request) {
  const auto args = scheduler::parse_preemption_args(request.body);
  if (!args) return text_response(400, args.error().full_message() + "\n");
  const Time now = dependencies_.loop.now();
  const auto& pod = args->pod;
  auto chosen = scheduler::choose_victims(dependencies_.cluster, pod, args->proposed,
                                          dependencies_.watcher.disruption_budgets(),
                                          preemptions_.find_answer(pod.uid, now));
  std::map<std::string_view, const scheduler::NodeVictims*> proposed;
  for (const auto& one : args->proposed) proposed[one.node] = &one;
  for (const auto& one : chosen)
    ++(one.uids == proposed.at(one.node)->uids ? metrics_.kept : metrics_.corrected);
  metrics_.dropped += args->proposed.size() - chosen.size();
  std::string body = scheduler::preemption_result_json(chosen);
  preemptions_.remember(pod.uid, std::move(chosen), now);
  return json_response(std::move(body));
}

void ExtenderService::handle_explain(const http::Request& request, const http::ResponseCallback& reply) {
  const auto name = query_parameter(request.target, "pod");
  auto name_space = query_parameter(request.target, "namespace");
  if (name_space.empty()) name_space = "default";
  const bool as_json = query_parameter(request.target, "format") == "json";
  if (name.empty()) return reply(text_response(400, "expected /explain?namespace=NAMESPACE&pod=POD\n"));
  if (const auto* const bound = dependencies_.cluster.find_pod(name_space + "/" + name))
    return reply(explain_pod(*bound, as_json));
  dependencies_.watcher.fetch_pod(
      name_space, name, [this, as_json, reply](const Result<scheduler::PodRequest>& pod) {
        if (pod) return reply(explain_pod(*pod, as_json));
        const auto code = pod.error().code();
        const int status = code == Code::kNotFound ? 404 : (code == Code::kInvalidArgument ? 400 : 503);
        reply(text_response(status, pod.error().full_message() + "\n"));
      });
}

http::Response ExtenderService::explain_pod(const scheduler::PodRequest& pod, bool as_json) {
  auto request = pod;
  const auto policy = select_policy(request);
  const auto explanation = scheduler::explain_placement(dependencies_.cluster, scorer_, request, policy);
  return as_json ? json_response(scheduler::explanation_json(explanation))
                 : text_response(200, scheduler::explanation_text(explanation));
}

http::Response ExtenderService::handle_readyz() const {
  if (shutting_down_) return text_response(503, "shutting down\n");
  if (dependencies_.watcher.is_synced()) return text_response(200, "ok\n");
  std::string body = "initial lists are incomplete\n";
  for (const auto& line : dependencies_.watcher.current_problems()) body += line + "\n";
  return text_response(503, std::move(body));
}

http::Response ExtenderService::handle_metrics() {
  const auto fed = dependencies_.watcher.watcher_stats();
  metrics_.events = events_.sent_count();
  metrics_.not_asked = asks_.missed_count();
  http::Response response =
      text_response(200, metrics_text(metrics_, {.nodes = dependencies_.cluster.node_count(),
                                                 .pods = dependencies_.cluster.pod_count(),
                                                 .pools = dependencies_.cluster.pool_count(),
                                                 .kinds = dependencies_.cluster.node_table().kind_count(),
                                                 .lists = fed.lists,
                                                 .objects_rejected = fed.rejected,
                                                 .ready = dependencies_.watcher.is_synced()}));
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return response;
}

}  // namespace gpulet::extender
