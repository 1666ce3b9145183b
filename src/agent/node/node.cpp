#include "agent/node/node.h"

#include <signal.h>

#include "agent/node/assembly.h"
#include "agent/node/config_reloader.h"
#include "agent/node/shutdown.h"
#include "base/log.h"
#include "base/process.h"
#include "config/print.h"
#include "device_plugin/pod_resources.h"

namespace gpulet::agent {
namespace {

// make_reporter(), which uses the same access, has logged its errors.
std::optional<k8s::ClientConfig> client_config_of(const config::Sources& sources) {
  auto found = k8s::find_client_config(sources.environment);
  return found ? std::move(*found) : std::nullopt;
}

}  // namespace

Node::Node(config::Sources given, config::LoadedConfig loaded, std::string running_version)
    : sources(std::move(given)),
      version(std::move(running_version)),
      config_text(config::print_yaml(loaded)),
      is_config_pending(false) {
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

void Node::fail_with(const Error& error) {
  result_ = fail(error);
  loop.stop_loop();
}

Status run_node(config::Sources sources, config::LoadedConfig loaded, const std::string& version) {
  // Never destroyed but for its components: a thread may still sit in a driver call that never returns.
  auto& node = *new Node(std::move(sources), std::move(loaded), version);
  auto& shutdown = *new Shutdown(node);
  ConfigReloader* reloader = nullptr;
  // Before any other thread exists.
  const auto signals =
      SignalWatcher::watch_signals(node.loop, {SIGTERM, SIGINT, SIGQUIT, SIGHUP}, [&](int signal) {
        if (signal == SIGHUP) return reloader->reload_config();
        log::info("stopping on a signal", {{"signal", signal}});
        shutdown.begin();
      });
  if (!signals) return fail(signals.error());
  node.grpc = device_plugin::start_grpc_thread();
  node.reporter = make_reporter(node.loop, node.sources.environment);
  node.client_config = client_config_of(node.sources);
  reloader = &assemble_node(node);
  node.components.start_all();
  node.loop.run_loop();
  // The plugin's sockets are closed immediately; threads in a driver call end with the process.
  node.components.destroy_all();
  return node.result();
}

}  // namespace gpulet::agent
