// What the node says of itself over HTTP: the listener, and what it is given to serve. Loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "agent/agent.h"
#include "agent/gpu_loads.h"
#include "agent/node_metrics.h"
#include "agent/page_care.h"
#include "agent/reporter.h"
#include "agent/web_access.h"
#include "web/listener.h"

namespace gpulet::agent {

class NodePages {
 public:
  // `agent`: the one that is there now, or null; `counts`: what others count. Both are asked whenever pages
  // are made. `environment`: NODE_NAME, else it is the host's.
  NodePages(Loop& loop, NodeReporter& reporter, std::function<const Agent*()> agent,
            std::function<NodeMetrics::Counts()> counts,
            const std::map<std::string, std::string, std::less<>>& environment, std::string version);
  ~NodePages() { reporter_.set_heard(nullptr); }
  NodePages(const NodePages&) = delete;

  // As NodeMetrics has them.
  void attach(NvmlDriver& driver, kubelet::PodResources& pod_resources, const config::Config& config);
  void detach() { metrics_.detach(); }
  void set_access(const cluster::Access& access) { metrics_.set_access(access); }
  void apply(const config::Config& config);
  // Opens the listener where the config in force says, and the one before is closed. An address or a socket
  // that cannot be had is told, and then nothing is served there; nor is it at the address while the web
  // config is bad, but where another was in force before: then all stays as it was.
  void listen(const config::Config& config);
  void on_health(const health::ViewPtr& view, const std::vector<health::Change>& changes) {
    page_.on_health(view, changes);
  }
  void on_config(std::string text) { page_.on_config(std::move(text)); }  // config::print_yaml
  // What is expected of each GPU that somebody holds, as the samples teach.
  const GpuLoads& loads() const { return loads_; }
  // What is so now; it goes on by itself, well inside web::kStale.
  void publish();

 private:
  // Where is served.
  struct Places {
    std::string address, web_config, socket;
    unsigned socket_mode = 0;
    friend bool operator==(const Places&, const Places&) = default;
  };
  static Places places_of(const config::Config& config);
  void open();
  // nullopt: nothing must change, as the web config is bad. Else who may connect, null for everybody; with
  // `served` whether the address is.
  std::optional<std::unique_ptr<WebAccess>> read_access(bool& served);
  void open_socket();
  void on_sampled();
  Loop& loop_;
  NodeReporter& reporter_;
  std::function<const Agent*()> agent_;
  std::function<NodeMetrics::Counts()> counts_;
  const std::string version_;
  NodeMetrics metrics_;
  GpuLoads loads_;
  PageCare page_;
  std::optional<Places> places_;  // that were asked for
  std::shared_ptr<const web::LocalSocket> socket_;
  std::unique_ptr<WebAccess> access_;
  std::unique_ptr<FileWatch> retry_;  // of a web config that was bad
  std::unique_ptr<web::Listener> listener_;
  Subscription heartbeat_;
};

}  // namespace gpulet::agent
