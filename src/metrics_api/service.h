// The custom metrics API of Pods' GPUs, as an extension server behind the API server: who asks, whether they
// may, which Pods, where those run, and what the agents there say.
//
//   /healthz /livez      200
//   /readyz              200 once it is known whom to trust, else 503
//   /apis …              discovery
//   /apis/custom.metrics.k8s.io/VERSION/namespaces/NAMESPACE/pods/POD|*/METRIC?labelSelector=…
//
// All but health is for users that the API server knows and lets: by the front proxy's certificate and
// fields, or by a bearer token. Everything else is refused with a Status. Sources: Kubernetes, "Configure the
// aggregation layer", "Set up an extension API server"; k8s.io/metrics.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/loop.h"
#include "metrics_api/answers.h"
#include "metrics_api/asker.h"
#include "metrics_api/authentication.h"
#include "metrics_api/pages.h"
#include "metrics_api/pod_list.h"
#include "metrics_api/reviews.h"
#include "metrics_api/target.h"
#include "web/service.h"

namespace gpulet::metrics_api {

// Loop's thread only.
class MetricsService final : public web::Service {
 public:
  // All outlive this.
  MetricsService(Reviews& reviews, Asker& pods, Pages& pages)
      : reviews_(reviews), pods_(pods), pages_(pages) {}

  // Whom to trust from now on; before the first call nobody is, and /readyz says so.
  void trust(FrontProxy proxy);

  void serve(const web::Request& request, Time now, const web::Reply& reply) override;

 private:
  void authorize(const User& user, const Target& target, const std::string& path, const web::Reply& reply);
  void answer(const Target& target, const web::Reply& reply);
  void find_pods(const PodMetric& asked, Metric metric, const web::Reply& reply);
  void ask_agents(const PodMetric& asked, Metric metric, const std::vector<ListedPod>& pods,
                  const web::Reply& reply);

  Reviews& reviews_;
  Asker& pods_;
  Pages& pages_;
  bool trusts_ = false;
  FrontProxy proxy_;
};

}  // namespace gpulet::metrics_api
