// The end of a node's agent, in order: where a Pod is replaced, the Node first says that none of its devices
// is allocatable; then components that take time to stop do so; then the loop ends.
#pragma once

#include <memory>

#include "agent/node/node.h"
#include "k8s/shutdown_announcer.h"

namespace gpulet::agent {

// Loop's thread only.
class Shutdown {
 public:
  explicit Shutdown(Node& node) : node_(node) {}

  // Also skips the announcement when it is called again.
  void begin();

 private:
  bool announce();
  void stop_components();

  Node& node_;
  std::unique_ptr<k8s::ShutdownAnnouncer> announcer_;
  Subscription limit_;
};

}  // namespace gpulet::agent
