#include "extender/server.h"

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/dns_name.h"
#include "base/file.h"
#include "base/file_watch.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "extender/cluster_watcher.h"
#include "http/access_gate.h"
#include "http/server.h"
#include "http/socket.h"
#include "k8s/event_recorder.h"
#include "scheduler/core/decision.h"
#include "scheduler/model/pod_request.h"

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
  if (path == "/filter" || path == "/prioritize") {
    if (request.method != "POST") return reply(text_response(405, "use POST\n"));
    const Time begun = dependencies_.loop.now();
    const bool filters = path == "/filter";
    http::Response response = filters ? handle_filter(request) : handle_prioritize(request);
    if (response.status == 200) {
      (filters ? metrics_.filter : metrics_.prioritize).record_duration(dependencies_.loop.now() - begun);
    } else {
      ++metrics_.bad_requests;
    }
    return reply(std::move(response));
  }
  if (request.method != "GET" && request.method != "HEAD") return reply(text_response(405, "use GET\n"));
  if (path == "/healthz") return reply(text_response(200, "ok\n"));
  if (path == "/readyz") return reply(handle_readyz());
  if (path == "/metrics") return reply(handle_metrics());
  if (path == "/explain") return handle_explain(request, reply);
  reply(
      text_response(404, "not found; paths: /filter, /prioritize, /explain, /metrics, /healthz, /readyz\n"));
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

http::Response ExtenderService::handle_filter(const http::Request& request) {
  auto args = ExtenderArgs::parse_body(request.body);
  if (!args) return text_response(400, args.error().full_message() + "\n");
  auto pod = args->pod_request();
  asks_.on_asked(pod);
  const auto policy = select_policy(pod);
  const scheduler::Filter filter(pod);
  std::vector<std::size_t> passed;
  std::vector<ExtenderArgs::FailedNode> failed;
  passed.reserve(args->node_names().size());
  for (std::size_t i = 0; i < args->node_names().size(); ++i) {
    const auto* const node =
        filter.requests_devices() ? dependencies_.cluster.find_node(args->node_names()[i]) : nullptr;
    if (node == nullptr) {
      ++metrics_.unpublished;
      passed.push_back(i);
      continue;
    }
    auto verdict = filter.check_node(*node);
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
    events_.report_unschedulable(pod, *args, failed, now);
  }
  if (filter.requests_devices()) passed = select_best_nodes(*args, pod, policy.name, std::move(passed));
  return json_response(args->filter_result_json(passed, failed));
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

namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMaxPemBytes = 1u << 20;
// A certificate and its key are two files, which Kubernetes replaces one right after the other.
constexpr Duration kSettle = 100ms;

Result<http::AccessRules> read_tls_access(const ExtenderOptions& options) {
  http::AccessRules access;
  if (options.certificate_file.empty() && options.key_file.empty()) {
    if (options.client_authorities_file.empty()) return access;
    return fail(Code::kInvalidArgument,
                "client certificates need a server certificate: set --tls-cert-file and --tls-key-file");
  }
  http::TlsServerConfig& tls = access.tls.emplace();
  tls.certificate_source = options.certificate_file;
  tls.key_source = options.key_file;
  tls.client_authorities_source = options.client_authorities_file;
  GPULET_TRY_ASSIGN(tls.certificate, read_file(options.certificate_file, kMaxPemBytes));
  GPULET_TRY_ASSIGN(tls.key, read_file(options.key_file, kMaxPemBytes));
  if (!options.client_authorities_file.empty()) {
    GPULET_TRY_ASSIGN(tls.client_authorities, read_file(options.client_authorities_file, kMaxPemBytes));
    tls.clients = http::ClientAuthType::kRequireAndVerify;
  }
  GPULET_TRY(http::check_access_rules(access));
  return access;
}

class ExtenderProcess {
 public:
  ExtenderProcess(ExtenderOptions options, k8s::ClientConfig access)
      : options_(std::move(options)), access_(std::move(access)) {}

  Status run_process() {
    GPULET_TRY_ASSIGN(const auto signals, SignalWatcher::watch_signals(loop_, {SIGTERM, SIGINT, SIGQUIT},
                                                                       [this](int) { begin_shutdown(); }));
    GPULET_TRY_ASSIGN(auto access, read_tls_access(options_));
    GPULET_TRY(access_gate_.set_rules(std::move(access)));
    watch_certificates();
    GPULET_TRY_ASSIGN(listener_, http::listen_tcp(options_.listen));
    events_ = k8s::EventRecorder::start_recorder(loop_, access_);
    if (!options_.record.empty()) record_ = AskRecordStore::start_store(loop_, access_, options_.record);
    watcher_.emplace(
        loop_, access_, cluster_, k8s::CollectionTiming{},
        [this] {
          log::info("cluster state synced",
                    {{"nodes", cluster_.node_count()}, {"pods", cluster_.pod_count()}});
        },
        [this](const auto& pod) { service_->on_pod_bound(pod); });
    std::set<std::string> schedulers(options_.scheduler_names.begin(), options_.scheduler_names.end());
    if (schedulers.empty()) schedulers = {kDefaultScheduler};
    service_.emplace(
        ServiceDependencies{
            .loop = loop_,
            .cluster = cluster_,
            .watcher = *watcher_,
            .send_event = [this](k8s::Event event) { events_->record_event(std::move(event)); },
            .record = record_.get(),
            .schedulers = std::move(schedulers)},
        options_.policy, options_.nodes_to_score);
    server_.emplace(loop_, listener_.get(), *service_, access_gate_,
                    http::ServerLimits{.exchange = 30s,
                                       .idle = 5min,
                                       .head_bytes = 16u << 10,
                                       .body_bytes = kMaxBodyBytes,
                                       .body_budget = kBodyBudget});
    log::info("serving kube-scheduler", {{"listen", options_.listen},
                                         {"port", http::socket_port(listener_.get())},
                                         {"tls", access_gate_.is_encrypted()},
                                         {"policy", options_.policy}});
    loop_.run_loop();
    return {};
  }

 private:
  // The Service stops sending requests to this replica before it exits.
  void begin_shutdown() {
    if (shutdown_timer_ || options_.shutdown_seconds == 0) return loop_.stop_loop();
    service_->begin_shutdown();
    shutdown_timer_ =
        loop_.after(std::chrono::seconds(options_.shutdown_seconds), [this] { loop_.stop_loop(); });
  }

  void watch_certificates() {
    for (const auto* const file :
         {&options_.certificate_file, &options_.key_file, &options_.client_authorities_file}) {
      if (file->empty()) continue;
      auto watch = FileWatcher::watch_path(
          loop_, *file, [this] { reload_timer_ = loop_.after(kSettle, [this] { reload_certificates(); }); });
      if (watch) {
        watches_.push_back(std::move(*watch));
      } else {
        log::warning("cannot watch the certificate for changes", watch.error());
      }
    }
  }

  void reload_certificates() {
    auto access = read_tls_access(options_);
    if (access) {
      if (const auto set = access_gate_.set_rules(std::move(*access)); set)
        return log::info("certificate reloaded");
    }
    log::warning(
        "cannot reload the certificate, keeping the previous one",
        access ? Error(Code::kInvalidArgument, "was rejected", options_.certificate_file) : access.error());
  }

  const ExtenderOptions options_;
  const k8s::ClientConfig access_;
  EpollLoop loop_;
  scheduler::ClusterState cluster_;
  http::AccessGate access_gate_;
  FileDescriptor listener_;
  std::vector<std::unique_ptr<FileWatcher>> watches_;
  Subscription reload_timer_, shutdown_timer_;
  std::unique_ptr<k8s::EventRecorder> events_;
  std::unique_ptr<AskRecordStore> record_;
  std::optional<ClusterWatcher> watcher_;
  std::optional<ExtenderService> service_;
  std::optional<http::Server> server_;
};

// The reporter name in Events: the Pod's, or else the host's.
std::string reporter_name(const std::map<std::string, std::string, std::less<>>& environment) {
  std::string name = "gpulet-scheduler";
  std::array<char, 256> host{};
  if (const auto pod = environment.find("HOSTNAME"); pod != environment.end() && !pod->second.empty()) {
    name = pod->second;
  } else if (::gethostname(host.data(), host.size() - 1) == 0) {
    name = host.data();
  }
  return is_dns_subdomain(name) ? name : "gpulet-scheduler";
}

}  // namespace

Status run_extender(const ExtenderOptions& options,
                    std::map<std::string, std::string, std::less<>> environment) {
  if (const auto policy = scheduler::parse_policy(options.policy); !policy) {
    return fail(Code::kInvalidArgument, policy.error().message(), "--policy " + options.policy);
  }
  if (!options.record.empty() && !is_dns_subdomain(options.record))
    return fail(Code::kInvalidArgument, "expected the name of a ConfigMap", "--record " + options.record);
  for (const auto& name : options.scheduler_names) {
    if (!is_dns_subdomain(name))
      return fail(Code::kInvalidArgument, "expected the name of a scheduler", "--scheduler-name " + name);
  }
  // The extender belongs to no node: its own name identifies its Events.
  environment["NODE_NAME"] = reporter_name(environment);
  GPULET_TRY_ASSIGN(auto access, k8s::find_client_config(environment));
  if (!access) {
    return fail(Code::kFailedPrecondition, "no API server found: run in a cluster, or set KUBECONFIG");
  }
  ::signal(SIGPIPE, SIG_IGN);
  // Bodies get pages of their own, which return to the kernel with them. Source: mallopt(3).
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  return ExtenderProcess(options, std::move(*access)).run_process();
}

}  // namespace gpulet::extender
