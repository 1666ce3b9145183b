// Kubernetes events: what an operator sees in `kubectl describe node`. Sent through the API server from inside the
// cluster (service account token and CA), from a thread-free client on the agent's loop.
#pragma once

#include <memory>
#include <string>

#include "base/loop.h"
#include "base/result.h"

namespace gpulet::cluster {

// Where the API server is and who we are. Read from KUBERNETES_SERVICE_HOST/PORT, the service account folder and
// NODE_NAME; absent outside a cluster.
struct Access {
  std::string host;
  std::uint16_t port = 443;
  std::string ca_file;
  std::string token_file;  // read anew for every request: kubelet rotates it
  std::string node_name;
  std::string pod_namespace = "default";
};

struct Event {
  bool warning = false;
  std::string reason;   // CamelCase
  std::string message;
};

class EventSender {
 public:
  static std::unique_ptr<EventSender> start(Loop& loop, Access access);
  virtual ~EventSender() = default;
  // Queues an event about the node. Never blocks; at most kMaxQueued wait, the oldest are dropped and counted; equal
  // ones within kRepeatWindow become one with a count. Retries with backoff from 1 s to 60 s.
  virtual void send(Event event) = 0;
};

}  // namespace gpulet::cluster
