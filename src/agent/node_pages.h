// What the node says of itself over HTTP: the listener, and what it is given to serve. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "agent/node_metrics.h"
#include "agent/reporter.h"
#include "web/listener.h"

namespace gpulet::agent {

class NodePages {
 public:
  // `agent`: the one that is there now, or null; asked whenever pages are made.
  // `environment`: NODE_NAME, else it is the host's.
  NodePages(Loop& loop, NodeReporter& reporter, std::function<const Agent*()> agent,
            const std::map<std::string, std::string, std::less<>>& environment, std::string version);

  // As NodeMetrics has them.
  void attach(NvmlDriver& driver, kubelet::PodResources& pod_resources, const config::Config& config);
  void detach() { metrics_.detach(); }
  void apply(const config::Config& config);
  // Opens the listener where the config in force says, and the one before is closed. An address that cannot
  // be had is told, and then nothing is served.
  void listen(const config::Config& config);
  void close() { listener_.reset(); }
  // What is so now; it goes on by itself, well inside web::kStale.
  void publish();

 private:
  Loop& loop_;
  NodeReporter& reporter_;
  std::function<const Agent*()> agent_;
  const std::string version_;
  NodeMetrics metrics_;
  std::optional<std::string> address_;  // that was asked for
  std::unique_ptr<web::Listener> listener_;
  Subscription heartbeat_;
};

}  // namespace gpulet::agent
