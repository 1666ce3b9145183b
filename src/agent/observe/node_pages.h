// The listener child's /healthz, /readyz and /metrics, from the agent's status. Pure.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/node/agent.h"
#include "agent/node/ports.h"
#include "agent/observe/gpu_load_forecaster.h"
#include "agent/observe/node_metrics.h"
#include "agent/observe/page_json.h"
#include "base/file_watch.h"
#include "base/loop.h"
#include "base/result.h"
#include "config/web_config.h"
#include "http/transport.h"
#include "metrics/exposition.h"
#include "web/listener.h"

namespace gpulet::agent {

// /healthz and /readyz; no metrics.
web::Pages build_status_pages(const AgentStatus& state);
// Writes /metrics into `pages`. `events`: number of reported events by reason. `add` adds the other metrics;
// may be empty.
void write_metrics(web::Pages& pages, const AgentStatus& state,
                   const std::map<std::string, std::uint64_t>& events, const std::string& version,
                   const std::function<void(metrics::Exposition&)>& add);

// Who may connect to the listener, by Prometheus' web config file: read at the start, and again when the
// file, its certificates or its keys change. An invalid file is logged once, and the previous one stays in
// force.

http::AccessRules access_from_config(const config::WebConfig& config);

// Loop's thread only.
class WebConfigWatcher {
 public:
  // `apply` gets valid new rules (Listener::set_access). Errors: those of reading and checking the file, as
  // there are no previous rules; kIo without inotify.
  static Result<std::unique_ptr<WebConfigWatcher>> start_watching(
      Loop& loop, std::string file, std::function<Status(const http::AccessRules&)> apply);

  const http::AccessRules& access() const { return access_; }  // in force
  // Why the current content of the files is not in force.
  const std::optional<Error>& last_error() const { return error_; }

 private:
  WebConfigWatcher(Loop& loop, std::string file, std::function<Status(const http::AccessRules&)> apply);
  Result<http::AccessRules> load_access();
  Status watch_files();
  void on_changed();

  Loop& loop_;
  std::string file_;
  std::function<Status(const http::AccessRules&)> apply_;
  http::AccessRules access_;
  std::optional<Error> error_;
  std::vector<std::string> files_, watched_files_;
  std::vector<std::unique_ptr<FileWatcher>> watches_;
  Subscription read_timer_;
};

// What the node serves over HTTP: the listener and its content. Loop's thread only.

class NodePages {
 public:
  // `agent` (null while there is none) and `counts` are called for each update of the pages. `environment`:
  // for NODE_NAME; without it the host's name. `loads`: gets the GPUs' loads after each sample, and none
  // while there are no samples.
  NodePages(Loop& loop, NodeReporter& reporter, std::function<const Agent*()> agent,
            std::function<NodeCounts()> counts,
            const std::map<std::string, std::string, std::less<>>& environment, std::string version,
            std::shared_ptr<placement::LoadBoard> loads);
  ~NodePages() { reporter_.set_listener(nullptr); }
  NodePages(const NodePages&) = delete;

  // See NodeMetrics.
  void set_state_dir(const std::string& directory) { metrics_.set_state_dir(directory); }
  void attach_driver(NvmlDriver& driver, device_plugin::PodResources& pod_resources,
                     const config::Config& config);
  void detach_driver();
  void set_access(const k8s::ClientConfig& access) { metrics_.set_access(access); }
  void apply_pages_config(const config::Config& config);
  // Closes the listener and opens it where `config` says. An address or a socket that cannot be opened is
  // reported, and nothing is served there. While the web config is invalid, nothing is served at the address;
  // if a previous one is in force, everything stays as it is.
  void start_listening(const config::Config& config);
  void record_health(const health::HealthViewPtr& view, const std::vector<health::StatusChange>& changes) {
    page_.record_health(view, changes);
    publish_soon();
  }
  void set_config_text(std::string text) { page_.set_config_text(std::move(text)); }  // config::print_yaml
  // Load forecasts of the GPUs that Pods hold.
  const GpuLoadForecaster& load_forecasts() const { return load_forecasts_; }
  // See GpuLoadForecaster.
  void add_controllers(const std::vector<scheduler::ControllerLoad>& loads) {
    load_forecasts_.add_controllers(loads, loop_.wall_now());
  }
  // Called after each sample, when the forecasts know it; empty: nobody.
  void set_sampled_callback(std::function<void()> sampled) { sampled_ = std::move(sampled); }
  // Publishes the current state, without metrics: those are written when a client asks for them, and are
  // valid until the next publication. From then on the pages are confirmed well within web::kPagesMaxAge, and
  // published again after each sample, soon after publish_soon(), and at least every 20 s, which is how old a
  // number can be that changes without either.
  void publish_pages();
  // Has a number of the pages that changed published within a second.
  void publish_soon();

 private:
  // Where the listener serves.
  struct Endpoints {
    std::string address, web_config, socket;
    unsigned socket_mode = 0;
    friend bool operator==(const Endpoints&, const Endpoints&) = default;
  };
  static Endpoints endpoints_of(const config::Config& config);
  void open_listener();
  // nullopt: the web config is invalid and nothing must change. Else the access rules, null for everybody;
  // `served`: whether the network address is served.
  std::optional<std::unique_ptr<WebConfigWatcher>> read_access(bool& served);
  void open_socket();
  void on_sampled();
  void confirm_pages();
  void publish_metrics();
  // The state as it is published; nullopt while there is no agent or no listener.
  struct PublishedState {
    AgentStatus status;
    NodeCounts counts;
  };
  std::optional<PublishedState> current_state();

  Loop& loop_;
  NodeReporter& reporter_;
  std::function<const Agent*()> agent_;
  std::function<NodeCounts()> counts_;
  std::function<void()> sampled_;
  const std::string version_;
  NodeMetrics metrics_;
  GpuLoadForecaster load_forecasts_;
  const std::shared_ptr<placement::LoadBoard> loads_;
  PageState page_;
  std::optional<Endpoints> endpoints_;  // of the config
  std::shared_ptr<const http::LocalSocket> socket_;
  std::unique_ptr<WebConfigWatcher> access_;
  std::unique_ptr<FileWatcher> retry_;  // watches an invalid web config
  std::unique_ptr<web::Listener> listener_;
  bool published_stuck_ = false;  // AgentStatus::stuck, as last published
  Subscription heartbeat_, soon_, refresh_;
};

}  // namespace gpulet::agent
