#include "agent/node/node.h"

#include <signal.h>

#include <utility>

#include "agent/dra/claim_sockets.h"
#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/node/standby.h"
#include "agent/node/succession.h"
#include "base/log.h"
#include "base/process.h"
#include "config/load.h"
#include "device_plugin/pod_resources.h"
#include "dra/claim_services.h"
#include "k8s/node_status.h"

namespace gpulet::agent {
namespace {

// make_reporter(), which uses the same access, has logged its errors.
std::optional<k8s::ClientConfig> client_config_of(const config::Sources& sources) {
  auto found = k8s::find_client_config(sources.environment);
  return found ? std::move(*found) : std::nullopt;
}

// The exporter's Pod may have no token: it sends no events, and asks the API server only for what a setting
// names.
void connect_exporter(Node& node) {
  node.reporter = std::make_unique<NodeReporter>();
  const auto& metrics = node.config.gpulet.metrics;
  if (!metrics.pod_labels && metrics.counters_config_map.empty()) return;
  auto found = k8s::find_client_config(node.sources.environment);
  if (!found) return log::warning("cannot read Pod labels or counters from the API server", found.error());
  node.client_config = std::move(*found);
}

void connect_to_cluster(Node& node) {
  if (node.sources.exporter) return connect_exporter(node);
  node.reporter = make_reporter(node.loop, node.sources.environment);
  node.client_config = client_config_of(node.sources);
}

// Samples, and serves the pages. MPS and CDI only join the devices: nothing is offered, so nothing asks them.
ConfigReloader& assemble_exporter(Node& node) {
  auto& list = node.components;
  auto& mps = list.emplace<MpsComponent>(node);
  auto& cdi = list.emplace<CdiComponent>(node);
  auto& reloader = list.emplace<ConfigReloader>(node);
  list.emplace<Devices>(node, mps.controller(), cdi.controller());
  list.emplace<PagesComponent>(node);
  return reloader;
}

// The components in their order. A new one is one line here. The reloader is one of them.
ConfigReloader& assemble_node(Node& node) {
  if (node.sources.exporter) return assemble_exporter(node);
  auto& list = node.components;
  auto& mps = list.emplace<MpsComponent>(node);
  auto& cdi = list.emplace<CdiComponent>(node);
  auto& reloader = list.emplace<ConfigReloader>(node);
  list.emplace<Devices>(node, mps.controller(), cdi.controller());
  list.add(make_device_node_component(node, cdi.controller()));
  list.add(make_driver_rights_component(node));
  list.add(make_operator_component(node));
  list.add(make_release_component(node));
  list.add(make_mig_component(node));
  list.add(make_claim_component(node, mps.controller()));
  auto& remediation = list.emplace<RemediationComponent>(node);
  list.add(make_gpu_repair_component(node));
  list.add(make_preflight_component(node));
  list.add(make_rejected_pods_component(node));
  list.add(make_cut_off_pods_component(node, remediation));
  list.add(make_power_component(node));
  list.add(make_pod_choice_component(node));
  list.add(make_startup_taint_component(node));
  list.add(make_label_component(node));
  list.add(make_rbac_component(node));
  list.add(make_kubeconfig_component(node));
  auto& pages = list.emplace<PagesComponent>(node);
  list.add(make_gpu_node_component(node, pages.pages()));
  list.add(make_rebalance_component(node, remediation, pages.pages()));
  list.add(make_memory_audit_component(node, mps.controller()));
  list.add(make_node_label_component(node));
  list.add(make_memory_component(node));
  return reloader;
}

// Components stop within it, or are ended with us: less than the grace period of deploy/static.
constexpr Duration kStopLimit = std::chrono::seconds(3);
// The kubelet may have chosen this agent for a call right before the next one registered.
constexpr Duration kQuietCalls = std::chrono::milliseconds(200);
constexpr Duration kCallLimit = std::chrono::seconds(2);

// The end of a node's agent, in order: where a Pod is replaced, the Node first says that none of its devices
// is allocatable; then the next agent registers for claims, and the calls in progress end; then components
// that take time to stop do so; then the loop ends.
class Shutdown {
 public:
  Shutdown(Node& node, Succession& succession) : node_(node), succession_(succession) {}

  // Also skips what it waits for when it is called again.
  void begin();

 private:
  bool announce();
  void hand_over();
  void finish_calls();
  void stop_components();

  Node& node_;
  Succession& succession_;
  std::unique_ptr<k8s::ShutdownAnnouncer> announcer_;
  bool is_begun_ = false, is_stopping_ = false;
  Subscription quiet_, limit_;
};

void Shutdown::begin() {
  if (!succession_.is_serving()) return node_.loop.stop_loop();
  if (std::exchange(is_begun_, true)) return stop_components();
  if (!announce()) hand_over();
}

// A Pod is deleted because another one replaces it: no Pod must be bound to the node in between. A second
// signal, and a service of a host, do not wait.
bool Shutdown::announce() {
  const auto* agent = node_.devices->agent();
  if (!node_.is_in_pod() || !node_.client_config || agent == nullptr) return false;
  std::vector<std::string> resources;
  for (const auto& offer : agent->offers()) resources.push_back(offer->resource.name.str());
  if (resources.empty()) return false;
  announcer_ = k8s::ShutdownAnnouncer::announce_shutdown(
      node_.loop, *node_.client_config, resources, [this] { node_.devices->close(); },
      [this] { hand_over(); });
  return true;
}

// Claims are served until the kubelet knows the next agent, where there is one.
void Shutdown::hand_over() {
  if (is_stopping_) return;
  succession_.hand_over([this](bool has_next) {
    if (is_stopping_) return;
    node_.has_successor = has_next;
    if (!has_next || !node_.serves_claims) return stop_components();
    limit_ = node_.loop.after(kCallLimit, [this] { stop_components(); });
    finish_calls();
  });
}

// An answer needs a moment to leave the process.
void Shutdown::finish_calls() {
  quiet_ = node_.loop.after(kQuietCalls, [this, before = node_.claim_calls] {
    const bool is_quiet = node_.claim_calls == before && before.begun == before.answered;
    is_quiet ? stop_components() : finish_calls();
  });
}

void Shutdown::stop_components() {
  is_stopping_ = true;
  quiet_.reset();
  limit_ = node_.loop.after(kStopLimit, [this] { node_.loop.stop_loop(); });
  node_.components.stop_all([this] { node_.loop.stop_loop(); });
}

// One agent: on standby while another one serves the node, then its components.
class NodeRun {
 public:
  explicit NodeRun(Node& node)
      : node_(node),
        succession_(node.loop, node.sources.exporter ? std::string() : node.config.gpulet.state_dir,
                    {.stand_by = [this] { standby_.emplace(node_); },
                     .register_early = [this] { register_early(); },
                     .serve = [this] { serve(); }}),
        shutdown_(node, succession_) {}

  void begin() { succession_.begin(); }
  void on_signal(int signal) {
    if (signal == SIGHUP) {
      if (reloader_ != nullptr) reloader_->reload_config();
      return;
    }
    log::info("stopping on a signal", {{"signal", signal}});
    shutdown_.begin();
  }
  // The plugin's sockets are closed immediately; threads in a driver call end with the process.
  void end() {
    standby_.reset();
    node_.components.destroy_all();
    node_.claim_sockets.reset();
    succession_.end();
  }

 private:
  void register_early() {
    standby_->register_claims([this] { succession_.finish_registration(); });
  }

  void serve() {
    if (standby_) {
      standby_.reset();
      reload_sources();
    }
    node_.presence = succession_.owned_path();
    reloader_ = &assemble_node(node_);
    node_.components.start_all();
  }

  // The config file may have changed since the start.
  void reload_sources() {
    auto sources = node_.sources;
    const auto read = config::read_config_file(sources);
    auto loaded = read ? config::load(sources) : Result<config::LoadedConfig>(fail(read.error()));
    if (!loaded) return log::warning("the configuration of the start stays in force", loaded.error());
    node_.set_config(std::move(*loaded));
  }

  Node& node_;
  Succession succession_;
  Shutdown shutdown_;
  std::optional<Standby> standby_;
  ConfigReloader* reloader_ = nullptr;
};

}  // namespace

Node::Node(config::Sources given, config::LoadedConfig loaded, std::string running_version)
    : sources(std::move(given)), version(std::move(running_version)), is_config_pending(false) {
  set_config(std::move(loaded));
}

Node::~Node() = default;

void Node::set_config(config::LoadedConfig loaded) {
  config_text = config::print_yaml(loaded);
  config = std::move(loaded.config);
  is_config_pending = !config.node_config.directory.empty();
}

bool Node::is_in_pod() const { return sources.environment.contains("KUBERNETES_SERVICE_HOST"); }

void Node::notify_state_changed() {
  if (is_state_change_posted_) return;
  is_state_change_posted_ = true;
  loop.post([this] {
    is_state_change_posted_ = false;
    components.for_each_reversed([](Component& component) { component.on_state_changed(); });
  });
}

void Node::notify_allocated() {
  components.for_each_reversed([](Component& component) { component.on_allocated(); });
}

void Node::fail_with(const Error& error) {
  result_ = fail(error);
  loop.stop_loop();
}

Status run_node(config::Sources sources, config::LoadedConfig loaded, const std::string& version) {
  // Never destroyed but for its components: a thread may still sit in a driver call that never returns.
  auto& node = *new Node(std::move(sources), std::move(loaded), version);
  auto& run = *new NodeRun(node);
  // Before any other thread exists.
  const auto signals = SignalWatcher::watch_signals(node.loop, {SIGTERM, SIGINT, SIGQUIT, SIGHUP},
                                                    [&](int signal) { run.on_signal(signal); });
  if (!signals) return fail(signals.error());
  node.claim_services = dra::ClaimServices::make_services();
  node.grpc = device_plugin::start_grpc_thread(node.claim_services->added_services());
  connect_to_cluster(node);
  run.begin();
  node.loop.run_loop();
  run.end();
  return node.result();
}

}  // namespace gpulet::agent
