// `gpulet metrics-api`: the service and the process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "http/message.h"
#include "k8s/client_config.h"
#include "metrics_api/agent_scraper.h"
#include "metrics_api/authentication.h"
#include "metrics_api/demand_forecast.h"
#include "metrics_api/page_cache.h"
#include "metrics_api/request_pool.h"
#include "metrics_api/responses.h"

namespace gpulet::metrics_api {

// The custom metrics API for Pods' GPUs, an extension server behind the API server: authenticates and
// authorizes a request, finds the Pods and their nodes, and reads the agents there.
//
//   /healthz /livez      200
//   /readyz              200 once the front proxy configuration is known, else 503
//   /apis …              discovery
//   /apis/custom.metrics.k8s.io/VERSION/namespaces/NAMESPACE/pods/POD|*/METRIC?labelSelector=…
//
// All but health needs a user whom the API server knows and permits: by the front proxy's certificate and
// headers, or by a bearer token. Everything else gets a Status. Sources: Kubernetes, "Configure the
// aggregation layer", "Set up an extension API server"; k8s.io/metrics.

// Loop thread only.
class MetricsService final : public http::RequestHandler {
 public:
  // All must outlive this. `clock`: the time of the day by which demand is learned and expected.
  MetricsService(AccessReviewer& reviews, RequestPool& pods, PageCache& pages,
                 std::function<WallTime()> clock)
      : reviews_(reviews), requests_(pods), pages_(pages), clock_(std::move(clock)) {}

  // Sets the front proxy to trust; before the first call nobody is trusted and /readyz fails.
  void set_front_proxy(FrontProxy proxy);

  void handle_request(const http::Request& request, Time now, const http::ResponseCallback& reply) override;

  DemandForecasts& demands() { return demands_; }

 private:
  void authorize_request(const User& user, const RequestTarget& target, const std::string& path,
                         const http::ResponseCallback& reply);
  void send_reply(const RequestTarget& target, const http::ResponseCallback& reply);
  void find_pods(const PodMetricRequest& metric_request, Metric metric, const http::ResponseCallback& reply);
  void fetch_pages(const PodMetricRequest& metric_request, Metric metric, const std::vector<ListedPod>& pods,
                   const http::ResponseCallback& reply);
  void raise_to_demand(const PodMetricRequest& metric_request, bool complete, std::vector<PodValue>& values);

  AccessReviewer& reviews_;
  RequestPool& requests_;
  PageCache& pages_;
  const std::function<WallTime()> clock_;
  DemandForecasts demands_;
  bool front_proxy_known_ = false;
  FrontProxy proxy_;
};

// The process `gpulet metrics-api`: listening socket, certificate, loop and all parts.

struct ServerOptions {
  std::string listen = ":8443";
  std::string certificate_file{}, key_file{};  // both, reloaded when they change; or neither: self-signed
  PodSelection agents{.name_space = {}, .label_selector = "app.kubernetes.io/name=gpulet", .name = {}};
  ScrapeOptions scrape{};
  PageCacheOptions pages{};
  std::string record{};  // ConfigMap in access.pod_namespace that keeps the demand; empty: none
  // How many times faster than the clock the forecast's time runs: above 1 only to show days in minutes.
  double forecast_time_scale = 1;
};

// Loop thread only.
class Server {
 public:
  // Listens from the start, and serves once the front proxy configuration is known. Needs get, list and
  // watch on the ConfigMap extension-apiserver-authentication, create on tokenreviews and
  // subjectaccessreviews, list on pods, and get and patch on the record. The process must ignore SIGPIPE.
  // Errors: kInvalidArgument for an option or a file; kIo and kPermissionDenied for what cannot be read or
  // bound.
  static Result<std::unique_ptr<Server>> start_server(Loop& loop, const k8s::ClientConfig& access,
                                                      const ServerOptions& options);
  virtual ~Server() = default;

  virtual std::uint16_t bound_port() const = 0;
};

}  // namespace gpulet::metrics_api
