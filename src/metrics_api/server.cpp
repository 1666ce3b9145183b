#include "metrics_api/server.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/file_watch.h"
#include "base/log.h"
#include "http/access_gate.h"
#include "http/certificate.h"
#include "http/server.h"
#include "http/socket.h"
#include "http/transport.h"
#include "k8s/watcher.h"
#include "metrics_api/authentication.h"
#include "metrics_api/demand_record.h"
#include "metrics_api/page_cache.h"
#include "metrics_api/request_pool.h"

namespace gpulet::metrics_api {
namespace {

http::Response json_reply(std::string body, int status = 200) {
  return {.status = status,
          .content_type = "application/json",
          .body = std::make_shared<const std::string>(std::move(body))};
}

http::Response failure_reply(int status, std::string_view reason, std::string_view message) {
  return json_reply(failure_status_json(status, reason, message), status);
}

http::Response text_reply(int status, const char* text) {
  return {.status = status, .body = std::make_shared<const std::string>(text)};
}

http::Response error_reply(const Error& error) {
  switch (error.code()) {
    case Code::kInvalidArgument:
      return failure_reply(400, "BadRequest", error.full_message());
    case Code::kPermissionDenied:
    case Code::kUnsupported:
      return failure_reply(500, "InternalError", error.full_message());
    default:
      return failure_reply(503, "ServiceUnavailable", error.full_message());
  }
}

RequestedAction requested_action(const RequestTarget& target, const std::string& path) {
  if (const auto* metric_request = std::get_if<PodMetricRequest>(&target)) {
    return {.path = {},
            .version = metric_request->version,
            .name_space = metric_request->name_space,
            .pod = metric_request->pod,
            .metric = metric_request->metric};
  }
  return {.path = path, .version = {}, .name_space = {}, .pod = {}, .metric = {}};
}

std::vector<PodValue> collect_values(const PodMetricRequest& metric_request, Metric metric,
                                     const std::vector<ListedPod>& pods,
                                     const PageCache::PagesByNode& pages) {
  std::vector<PodValue> values;
  for (const auto& pod : pods) {
    const auto node = pages.find(pod.node);
    if (node == pages.end()) continue;
    const auto found = node->second->page.pods.find({metric_request.name_space, pod.name});
    if (found == node->second->page.pods.end()) continue;
    if (const auto value = found->second.find(metric); value != found->second.end()) {
      values.push_back({pod.name, value->second, node->second->measured_wall});
    }
  }
  std::ranges::sort(values, {}, &PodValue::pod);
  return values;
}

}  // namespace

void MetricsService::set_front_proxy(FrontProxy proxy) {
  proxy_ = std::move(proxy);
  front_proxy_known_ = true;
}

void MetricsService::handle_request(const http::Request& request, Time, const http::ResponseCallback& reply) {
  if (request.method != "GET" && request.method != "HEAD") {
    return reply(failure_reply(405, "MethodNotAllowed", "these metrics are read-only"));
  }
  const auto target = parse_request_target(request.target);
  if (target && std::holds_alternative<HealthRequest>(*target)) {
    const bool good = front_proxy_known_ || !std::get<HealthRequest>(*target).ready;
    return reply(
        good ? text_reply(200, "ok")
             : text_reply(
                   503, "not ready: the front proxy configuration has not been read from the API server\n"));
  }
  // Unauthorized users do not learn what was wrong with the request.
  const RequestTarget metric_request = target ? *target : RequestTarget(UnknownRequest{});
  const http::ResponseCallback checked =
      target ? reply : [reply, error = target.error()](const http::Response& response) {
        reply(response.status == 404 ? error_reply(error) : response);
      };
  const std::string path(target_path(request.target));
  if (const auto user = user_from_front_proxy(proxy_, request))
    return authorize_request(add_authenticated_group(*user), metric_request, path, checked);
  const auto token = bearer_token(request);
  if (!token) return reply(failure_reply(401, "Unauthorized", "no credentials"));
  reviews_.authenticate_token(
      *token, [this, metric_request, path, checked](const Result<std::optional<User>>& user) {
        if (!user) return checked(error_reply(user.error()));
        if (!*user) return checked(failure_reply(401, "Unauthorized", "invalid bearer token"));
        authorize_request(add_authenticated_group(**user), metric_request, path, checked);
      });
}

void MetricsService::authorize_request(const User& user, const RequestTarget& target, const std::string& path,
                                       const http::ResponseCallback& reply) {
  reviews_.authorize_action(
      user, requested_action(target, path), [this, name = user.name, target, reply](const Result<bool>& may) {
        if (!may) return reply(error_reply(may.error()));
        if (*may) return send_reply(target, reply);
        reply(failure_reply(403, "Forbidden", "User \"" + name + "\" is not allowed to get this"));
      });
}

void MetricsService::send_reply(const RequestTarget& target, const http::ResponseCallback& reply) {
  if (std::holds_alternative<GroupListRequest>(target)) return reply(json_reply(group_list_json()));
  if (std::holds_alternative<GroupRequest>(target)) return reply(json_reply(group_json()));
  if (const auto* resources = std::get_if<ResourceListRequest>(&target)) {
    return reply(json_reply(resource_list_json(resources->version)));
  }
  const auto* metric_request = std::get_if<PodMetricRequest>(&target);
  const auto metric = metric_request != nullptr ? find_metric(metric_request->metric) : std::nullopt;
  if (!metric)
    return reply(failure_reply(404, "NotFound", "the server could not find the requested resource"));
  find_pods(*metric_request, *metric, reply);
}

void MetricsService::find_pods(const PodMetricRequest& metric_request, Metric metric,
                               const http::ResponseCallback& reply) {
  list_pods(requests_,
            {.name_space = metric_request.name_space,
             .label_selector = metric_request.selector,
             .name = metric_request.selects_all() ? std::string() : metric_request.pod},
            [this, metric_request, metric, reply](const Result<std::vector<ListedPod>>& pods) {
              if (!pods) return reply(error_reply(pods.error()));
              fetch_pages(metric_request, metric, *pods, reply);
            });
}

void MetricsService::fetch_pages(const PodMetricRequest& metric_request, Metric metric,
                                 const std::vector<ListedPod>& pods, const http::ResponseCallback& reply) {
  std::set<std::string> nodes;
  for (const auto& pod : pods) {
    if (!pod.node.empty()) nodes.insert(pod.node);
  }
  const std::size_t node_count = nodes.size();
  pages_.get_pages(nodes, [this, metric_request, metric, pods, reply,
                           node_count](const Result<PageCache::PagesByNode>& pages) {
    if (!pages) return reply(error_reply(pages.error()));
    const bool forecasts = metric == Metric::kUtilizationForecast;
    auto values = collect_values(metric_request, forecasts ? Metric::kUtilization : metric, pods, *pages);
    if (forecasts) raise_to_demand(metric_request, pages->size() == node_count, values);
    if (values.empty() && !metric_request.selects_all()) {
      return reply(failure_reply(404, "NotFound",
                                 metric_request.metric + " of Pod " + metric_request.name_space + "/" +
                                     metric_request.pod + " has no value"));
    }
    reply(json_reply(metric_values_json(metric_request, values)));
  });
}

// Divides what the service is expected to need beyond its present use among its Pods, so that their sum is
// the greater of the two. `complete`: whether every agent answered; else the sum is no sample.
void MetricsService::raise_to_demand(const PodMetricRequest& metric_request, bool complete,
                                     std::vector<PodValue>& values) {
  if (values.empty()) return;
  double sum = 0;
  for (const auto& value : values) sum += value.value;
  const std::string service =
      metric_request.name_space +
      (metric_request.selects_all() ? " " + metric_request.selector : "/" + metric_request.pod);
  const WallTime now = clock_();
  if (complete) demands_.add_sample(service, now, sum);
  const auto expected = demands_.greatest_demand(service, now, metric_request.horizon);
  if (expected) raise_to_sum(values, *expected);
}

namespace {

constexpr const char* kCertificateName = "gpulet-metrics-api";
constexpr std::size_t kMaxPemBytes = 1u << 20;
// The API server keeps its connections for 90 s and should be the one that closes them. A request may wait
// for a review, a list of Pods, a list of agents and the agents' pages.
constexpr http::ServerLimits kLimits{
    .exchange = std::chrono::seconds(25), .idle = std::chrono::seconds(100), .head_bytes = 64u << 10};

std::function<WallTime()> forecast_clock(Loop& loop, double scale) {
  return [&loop, scale, start = loop.wall_now()] {
    const auto passed = std::chrono::duration_cast<std::chrono::duration<double>>(loop.wall_now() - start);
    return start + std::chrono::duration_cast<WallTime::duration>(passed * scale);
  };
}

class MetricsServer final : public Server {
 public:
  MetricsServer(Loop& loop, const k8s::ClientConfig& access, const ServerOptions& options)
      : loop_(loop),
        options_(options),
        token_requests_(loop, access, kTokenLimits),
        requests_(loop, access, {}),
        reviews_(loop, token_requests_, requests_),
        agents_(loop, requests_, options.agents),
        scraper_(loop, options.scrape),
        pages_(loop, agents_, scraper_, options.pages),
        clock_(forecast_clock(loop, options.forecast_time_scale)),
        service_(reviews_, requests_, pages_, clock_) {}

  Status open_server(const k8s::ClientConfig& access) {
    if (options_.certificate_file.empty() != options_.key_file.empty()) {
      return fail(Code::kInvalidArgument, "set both or neither", "--tls-cert-file, --tls-private-key-file");
    }
    GPULET_TRY_ASSIGN(certificate_, read_certificate());
    GPULET_TRY(apply_tls(certificate_, proxy_));
    GPULET_TRY_ASSIGN(listener_, http::listen_tcp(options_.listen));
    for (const auto* file : {&options_.certificate_file, &options_.key_file}) {
      if (file->empty()) continue;
      GPULET_TRY_ASSIGN(auto watch,
                        FileWatcher::watch_path(loop_, *file, [this] { on_certificate_change(); }));
      watches_.push_back(std::move(watch));
    }
    if (!options_.record.empty()) record_.emplace(loop_, access, options_.record, service_.demands(), clock_);
    server_ = std::make_unique<http::Server>(loop_, listener_.get(), service_, access_gate_, kLimits);
    front_proxy_watch_ = k8s::ObjectWatcher::watch_object(
        loop_, access,
        {.collection = "/api/v1/namespaces/kube-system/configmaps",
         .name = "extension-apiserver-authentication",
         .description = "the front proxy's client CA",
         .resource = "configmaps extension-apiserver-authentication in kube-system"},
        {}, [this](const nlohmann::json& map) { on_front_proxy_config(map); });
    return {};
  }

  std::uint16_t bound_port() const override { return http::socket_port(listener_.get()); }

 private:
  Result<http::KeyPair> read_certificate() {
    if (options_.certificate_file.empty())
      return http::make_self_signed_certificate(kCertificateName, loop_.wall_now(),
                                                http::kSelfSignedLifetime);
    GPULET_TRY_ASSIGN(auto certificate, read_file(options_.certificate_file, kMaxPemBytes));
    GPULET_TRY_ASSIGN(auto key, read_file(options_.key_file, kMaxPemBytes));
    return http::KeyPair{std::move(certificate), std::move(key)};
  }

  // Existing connections serve one more request under their old settings.
  Status apply_tls(const http::KeyPair& own, const FrontProxy& proxy) {
    const bool has_client_ca = !proxy.client_ca_pem.empty();
    return access_gate_.set_rules(
        {.tls = http::TlsServerConfig{
             .certificate = own.certificate,
             .key = own.key,
             .client_authorities = proxy.client_ca_pem,
             .certificate_source = options_.certificate_file,
             .key_source = options_.key_file,
             .client_authorities_source = "requestheader-client-ca-file",
             .clients = has_client_ca ? http::ClientAuthType::kVerifyIfGiven : http::ClientAuthType::kNone}});
  }

  void on_certificate_change() {
    auto own = read_certificate();
    const Status applied = own ? apply_tls(*own, proxy_) : Status(fail(own.error()));
    if (!applied)
      return log::warning("cannot reload the certificate, keeping the previous one", applied.error());
    if (own->certificate != certificate_.certificate) log::info("certificate reloaded");
    certificate_ = std::move(*own);
  }

  void on_front_proxy_config(const nlohmann::json& map) {
    auto proxy = parse_front_proxy(map);
    if (proxy && front_proxy_known_ && *proxy == proxy_) return;
    const Status applied = proxy ? apply_tls(certificate_, *proxy) : Status(fail(proxy.error()));
    if (!applied) {
      return log::warning("cannot apply the front proxy configuration, keeping the previous one",
                          applied.error(), {{"configmap", "kube-system/extension-apiserver-authentication"}});
    }
    if (proxy->client_ca_pem.empty()) {
      log::warning("the API server configures no front proxy: only bearer tokens are accepted",
                   {{"configmap", "kube-system/extension-apiserver-authentication"}});
    }
    front_proxy_known_ = true;
    proxy_ = *proxy;
    service_.set_front_proxy(std::move(*proxy));
  }

  Loop& loop_;
  const ServerOptions options_;
  RequestPool token_requests_, requests_;
  AccessReviewer reviews_;
  AgentLocator agents_;
  AgentScraper scraper_;
  PageCache pages_;
  const std::function<WallTime()> clock_;
  MetricsService service_;
  std::optional<DemandRecord> record_;
  http::AccessGate access_gate_;
  http::KeyPair certificate_;
  FrontProxy proxy_;
  bool front_proxy_known_ = false;
  FileDescriptor listener_;
  std::vector<std::unique_ptr<FileWatcher>> watches_;
  std::unique_ptr<http::Server> server_;
  std::unique_ptr<k8s::ObjectWatcher> front_proxy_watch_;
};

}  // namespace

Result<std::unique_ptr<Server>> Server::start_server(Loop& loop, const k8s::ClientConfig& access,
                                                     const ServerOptions& options) {
  auto joined = std::make_unique<MetricsServer>(loop, access, options);
  GPULET_TRY(joined->open_server(access));
  return std::unique_ptr<Server>(std::move(joined));
}

}  // namespace gpulet::metrics_api
