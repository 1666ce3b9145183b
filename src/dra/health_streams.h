// The gRPC service DRAResourceHealth of a DRA driver, as v1 and v1alpha1: streams of the devices' health to
// the kubelet. The newest report goes to every open stream, one at a time, so that a client that does not
// read costs one message.
//
// A kubelet takes a device that it does not hear of for kHealthTimeout for unknown. Resending is the
// caller's, so that an agent that hangs does not vouch for its devices. Source:
// k8s.io/kubelet/pkg/apis/dra-health/{v1,v1alpha1} (Kubernetes 1.37, 1.36).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dra/device_health.h"

namespace grpc {
class ServerCompletionQueue;
class Service;
}  // namespace grpc

namespace gpulet::dra {

inline constexpr std::chrono::seconds kHealthTimeout{30};
// More streams at the same time are answered RESOURCE_EXHAUSTED; a kubelet has one for each connection.
inline constexpr std::size_t kMaxHealthStreams = 16;
// What every call is answered, with UNAVAILABLE, while no agent serves claims; those of ClaimServices too.
inline constexpr const char* kNotServed = "this node serves no claims";

struct HealthReport {
  std::string pool;              // of every device
  std::int64_t unix_time_s = 0;  // when this was determined
  std::vector<DeviceHealth> devices;
};

// Any thread may call any member. The first three are those of AddedServices; it must outlive the queue.
class HealthStreams {
 public:
  HealthStreams();
  ~HealthStreams();
  HealthStreams(const HealthStreams&) = delete;

  std::vector<grpc::Service*> services();
  void start_serving(grpc::ServerCompletionQueue& queue);
  void stop_serving();

  // Accepts streams from now on; they wait for the first report. Before and after, UNAVAILABLE.
  void open_streams();
  // Ends every stream, and forgets the report.
  void close_streams();
  // Sends it to every stream, also if it is the same as before, and to those that come later.
  void send_report(const HealthReport& report);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpulet::dra
