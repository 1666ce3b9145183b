// Finds out whether the agent can publish its GpuNode: the API server serves the CRD and grants the rights.
// Most clusters run without `gpulet scheduler`, so that an unset gpulet.publishGpuNode must cost nothing and
// log no failure there; and the CRD may be installed at any time, which nothing announces to the agent.
//
// Source: Kubernetes API concepts, discovery of one group version; agent/publish/rbac_check.h has the rights.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/object_reader.h"

namespace gpulet::agent {

// One GET without the CRD: 5,000 nodes cost the API server 42 of them per second.
inline constexpr Duration kGpuNodeAccessInterval = std::chrono::minutes(2);

struct GpuNodeAccessPorts {
  // Whether the writes of the GpuNode fail at present: asked each interval while it is published.
  std::function<bool()> is_failing;
  // The GpuNode can be published, or no longer. From the loop; may not destroy the GpuNodeAccess.
  std::function<void()> changed;
};

// Loop's thread only.
class GpuNodeAccess {
 public:
  // Looks at once, then every `interval` while the GpuNode cannot be published or its writes fail. An API
  // server that does not respond is asked again with backoff and changes nothing.
  GpuNodeAccess(Loop& loop, k8s::ClientConfig access, GpuNodeAccessPorts ports,
                Duration interval = kGpuNodeAccessInterval, k8s::SendTiming timing = {});
  GpuNodeAccess(const GpuNodeAccess&) = delete;

  // False before the first answer.
  bool can_publish() const { return can_publish_; }

 private:
  void look();
  void look_later();
  void read_discovery();
  k8s::RetryingSender::Outcome on_discovery(const http::ClientResponse& response);
  void conclude(bool can_publish, const std::string& reason);

  Loop& loop_;
  const GpuNodeAccessPorts ports_;
  const Duration interval_;
  const std::string node_name_;
  bool looking_ = false, can_publish_ = false;
  std::string reason_;  // why not, as logged
  Subscription next_;
  k8s::RetryingSender discovery_;
  std::unique_ptr<k8s::AccessReview> review_;
};

}  // namespace gpulet::agent
