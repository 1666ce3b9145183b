// The gRPC services of a DRA driver, on the device plugin's server: registration, NodePrepareResources and
// NodeUnprepareResources as v1 and v1beta1, and the health streams (dra/health_streams.h). Requests come from
// the kubelet over any socket of the server.
//
// GetInfo is a constant and is answered on the gRPC thread, so it never waits for the driver or the loop; the
// kubelet allows it one second. The other calls are handed to the loop and answered whenever it is ready.
// Source: k8s.io/kubelet/pkg/apis/{pluginregistration/v1,dra/v1,dra/v1beta1} (Kubernetes 1.36).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "dra/claim_controller.h"
#include "dra/health_streams.h"

namespace gpulet::device_plugin {
class AddedServices;
}

namespace gpulet::dra {

// More calls that are open at the same time are answered RESOURCE_EXHAUSTED.
inline constexpr std::size_t kMaxOpenCalls = 256;
// Claims of one request; more are answered INVALID_ARGUMENT.
inline constexpr std::size_t kMaxClaimsPerCall = 1024;

// The kubelet waits for 45 seconds.
inline constexpr Duration kMaxCallWait = std::chrono::seconds(40);

struct PluginIdentity {
  std::string driver;    // "gpu.nvidia.com"
  std::string endpoint;  // path of the service's socket
};

// All run on the loop.
struct ClaimHandlers {
  using Prepared = std::map<std::string, Result<PreparedClaim>>;  // by uid
  std::function<void(const std::vector<ClaimName>&, std::function<void(Prepared)> done)> prepare;
  std::function<std::map<std::string, Status>(const std::vector<ClaimName>&)> unprepare;
  // The kubelet accepted the registration, or refused it with the reason.
  std::function<void(const Status&)> registered;
};

// Any thread may call any member.
class ClaimServices {
 public:
  static std::shared_ptr<ClaimServices> make_services();
  virtual ~ClaimServices() = default;

  // For start_grpc_thread, as long as it wants it.
  virtual std::shared_ptr<device_plugin::AddedServices> added_services() = 0;

  // The kubelet may register the driver from now on, before its claims are known: prepares and unprepares
  // wait for open_services(), at most kMaxCallWait, and are then answered UNAVAILABLE. `registered` as in
  // ClaimHandlers. The loop must live until close_services().
  virtual void announce_services(Loop& loop, PluginIdentity identity,
                                 std::function<void(const Status&)> registered) = 0;
  // Answers requests from now on; before and after, they are answered UNAVAILABLE. After
  // announce_services(), the registration so far is reported to the new handlers. The loop must live until
  // close_services().
  virtual void open_services(Loop& loop, PluginIdentity identity, ClaimHandlers handlers) = 0;
  // From the loop: no handler runs after this, and the health streams end.
  virtual void close_services() = 0;

  // HealthStreams::send_report(); nothing while the services are closed.
  virtual void send_health(const HealthReport& report) = 0;
};

}  // namespace gpulet::dra
