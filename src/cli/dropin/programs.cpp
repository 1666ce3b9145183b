#include "cli/dropin/programs.h"

#include <signal.h>

#include <iostream>
#include <memory>
#include <random>
#include <set>

#include <CLI/CLI.hpp>

#include "agent/driver/nvml_driver.h"
#include "agent/node/node.h"
#include "agent/publish/feature_discovery.h"
#include "base/file_watch.h"
#include "base/log.h"
#include "base/process.h"
#include "cli/dropin/config_manager.h"
#include "cli/main/command_line.h"
#include "cli/main/process_exit.h"
#include "mps/daemon.h"
#include "mps/manager.h"
#include "mps/shared_memory.h"
#include "partition/resources.h"

namespace gpulet::cli {

int run_agent(config::Sources sources, const std::vector<std::string>& notes) {
  auto with_file = sources;
  if (const auto status = config::read_config_file(with_file); !status) {
    return print_error("gpulet", status.error().full_message());
  }
  auto loaded = config::load(with_file);
  if (!loaded) {
    // NVIDIA's programs exit with 1.
    const int code = with_file.drop_in ? kFailed : error_exit_code(loaded.error());
    return print_error("gpulet", loaded.error().full_message(), code);
  }
  agent::configure_log(loaded->config.gpulet);
  for (const auto& note : notes) log::info(note);
  for (const auto& warning : loaded->warnings) log::warning(warning);
  const auto status = agent::run_node(std::move(sources), std::move(*loaded), version());
  return status ? 0 : print_error("gpulet", status.error().full_message());
}

namespace {

// Labels the node. Returns the exit code.
int run_feature_discovery_program(agent::FeatureDiscoveryOptions options) {
  options.print = [](const std::string& text) { std::cout << text << std::flush; };
  const auto status = agent::run_feature_discovery(std::move(options));
  return status ? 0 : print_error("gpu-feature-discovery", status.error().full_message());
}

using namespace std::chrono_literals;

// How often to look for added and removed GPUs and changed MIG modes.
constexpr Duration kReadInterval = 30s;

Result<config::LoadedConfig> load_settings(config::Sources sources, const std::string& root) {
  // The program has no such flag, but the settings require it with MPS.
  sources.environment.try_emplace("MPS_ROOT", root);
  GPULET_TRY(config::read_config_file(sources));
  return config::load(sources);
}

class MpsDaemonRunner {
 public:
  MpsDaemonRunner(const MpsOptions& options, config::Config config)
      : options_(options),
        config_(std::move(config)),
        driver_(loop_, {.driver_root = config_.flags.container_driver_root,
                        .call_timeout = config_.gpulet.driver_call_timeout,
                        .events = false}),
        manager_(loop_,
                 {.root = options.root,
                  .driver_root = config_.flags.container_driver_root,
                  .host_root = config_.flags.mps_root,
                  .seed = std::random_device{}()},
                 mps::nvidia_smi_compute_mode(loop_, config_.flags.container_driver_root),
                 [this](const std::string& name, const inventory::Health& health) {
                   if (health.healthy) log::info("MPS control daemon is running", {{"daemon", name}});
                   watch_service();
                 }),
        backoff_(kDriverRetry, std::random_device{}()) {}

  Status run_until_stopped() {
    const auto signals = SignalWatcher::watch_signals(loop_, {SIGTERM, SIGINT, SIGQUIT, SIGHUP},
                                                      [this](int signal) { on_signal(signal); });
    if (!signals) return fail(signals.error());
    watch_config();
    watch_service();
    open_mps_driver();
    loop_.run_loop();
    return unserved_;
  }

 private:
  void on_signal(int signal) {
    if (signal == SIGHUP) return reload_settings();
    log::info("stopping", {{"signal", signal}});
    if (stopping_) return loop_.stop_loop();
    stopping_ = true;
    next_.reset();
    manager_.stop_all([this] { loop_.stop_loop(); });
  }

  void watch_config() {
    config::Sources sources = options_.sources;
    if (!config::read_config_file(sources) || sources.file_path.empty()) return;
    auto watch = FileWatcher::watch_path(loop_, sources.file_path, [this] { reload_settings(); });
    if (watch) {
      config_watch_ = std::move(*watch);
    } else {
      log::warning("cannot watch the config file; send SIGHUP after a change", watch.error());
    }
  }

  void reload_settings() {
    if (stopping_) return;
    auto loaded = load_settings(options_.sources, options_.root);
    if (!loaded) return log::error("invalid settings; keeping the previous ones", loaded.error());
    log::info("settings reloaded");
    for (const auto& warning : loaded->warnings) log::warning(warning);
    config_ = std::move(loaded->config);
    if (snapshot_) apply_settings();
  }

  void open_mps_driver() {
    driver_.open_driver(
        [this](const Status& opened) { opened ? read_snapshot() : retry_driver(opened.error()); });
  }

  void read_snapshot() {
    driver_.read_snapshot([this](Result<inventory::Snapshot> snapshot) {
      if (!snapshot) return retry_driver(snapshot.error());
      backoff_.reset();
      failure_.clear();
      snapshot_ = std::move(*snapshot);
      if (stopping_) return;
      apply_settings();
      next_ = loop_.after(kReadInterval, [this] { read_snapshot(); });
    });
  }

  // Why no daemon serves although one is wanted, or may be: one line; nullopt if one serves or none is
  // wanted.
  std::optional<std::string> problem() const {
    if (!snapshot_) return failure_.empty() ? "the GPUs are not listed yet" : failure_;
    const auto healths = manager_.daemon_healths();
    const auto* const unserved = mps::find_unserved_daemon(healths);
    return unserved ? std::optional(unserved->second.reason) : std::nullopt;
  }

  // Ends the process once no daemon has served for serve_limit. One that serves is reason to go on: it has
  // clients.
  void watch_service() {
    if (!problem()) return unserved_limit_.reset();
    if (unserved_limit_ || stopping_) return;
    unserved_limit_ = loop_.after(options_.serve_limit, [this] {
      const auto why = problem();
      if (!why || stopping_) return;
      unserved_ = fail(Error(Code::kUnavailable, *why).with_context("no MPS control daemon serves"));
      stopping_ = true;
      next_.reset();
      manager_.stop_all([this] { loop_.stop_loop(); });
    });
  }

  // The daemons keep running.
  void retry_driver(const Error& error) {
    if (stopping_) return;
    if (failure_ != error.full_message()) log::warning("cannot list the GPUs", error);
    failure_ = error.full_message();
    next_ = loop_.after(backoff_.next_delay(), [this] { open_mps_driver(); });
  }

  void apply_settings() {
    const auto plan = partition::plan_resources(*snapshot_, config_);
    for (const auto& note : plan.notes) {
      if (logged_notes_.insert(note.message).second) log::warning(note.message);
    }
    auto specs = mps::plan_daemons(plan.resources, *snapshot_);
    if (specs.empty() && !logged_idle_) log::info("no devices are configured for MPS sharing");
    logged_idle_ = specs.empty();
    manager_.apply_specs(std::move(specs));
    watch_service();
  }

  MpsOptions options_;
  config::Config config_;
  EpollLoop loop_;
  agent::NvmlDriver driver_;
  mps::DaemonManager manager_;
  std::unique_ptr<FileWatcher> config_watch_;
  std::optional<inventory::Snapshot> snapshot_;
  std::set<std::string> logged_notes_;
  std::string failure_;
  Backoff backoff_;
  Subscription next_, unserved_limit_;
  Status unserved_;
  bool logged_idle_ = false;
  bool stopping_ = false;
};

}  // namespace

int run_mps_control_daemon(const MpsOptions& options) {
  auto loaded = load_settings(options.sources, options.root);
  if (!loaded) {
    return print_error("mps-control-daemon", loaded.error().full_message());
  }
  agent::configure_log(loaded->config.gpulet);
  for (const auto& warning : loaded->warnings) log::warning(warning);
  MpsDaemonRunner node(options, std::move(loaded->config));
  const auto status = node.run_until_stopped();
  const int code = status ? 0 : print_error("mps-control-daemon", status.error().full_message());
  // Here, because the destructor of `node` would end the daemons that a second signal leaves running.
  leave_process("mps-control-daemon", code);
}

int mount_mps_shm(const std::string& root) {
  const auto mounted = mps::mount_shm(mps::shm_directory(root));
  if (mounted) return 0;
  return print_error("mps-control-daemon", mounted.error().full_message());
}

int device_plugin_main(int argc, char** argv) {
  config::Sources sources;
  sources.drop_in = true;
  {
    CLI::App app{"Run gpulet as the kubelet's device plugin for NVIDIA GPUs", "nvidia-device-plugin"};
    set_help(app, "Takes the flags, environment and config file of NVIDIA's program.", "");
    add_setting_options(app, sources.flags);
    app.set_version_flag("--version,-v", version());
    if (const auto code = parse_arguments(app, argc, argv, true)) return *code;
  }
  sources.environment = config::process_environment();
  return run_agent(std::move(sources));
}

int mps_control_main(int argc, char** argv) {
  CLI::App app{"Run the MPS control daemons of a node", "mps-control-daemon"};
  set_help(app, "Takes the flags, environment and config file of NVIDIA's program.", "");
  MpsOptions options;
  options.sources.drop_in = true;
  add_setting_options(app, options.sources.flags);
  app.set_version_flag("--version,-v", version());
  app.add_option("--root", options.root, "mount point of the MPS root in this process (default /mps)");
  const auto& mount =
      add_command(app, {.name = "mount-shm", .summary = "Mount the shared memory of MPS clients and exit"});
  if (const auto code = parse_arguments(app, argc, argv, true)) return *code;
  if (mount.parsed()) return mount_mps_shm(options.root);
  options.sources.environment = config::process_environment();
  return run_mps_control_daemon(options);
}

int config_manager_main(int argc, char** argv) {
  CLI::App app{"Link the config file that a node's label names", "config-manager"};
  set_help(app, "Takes the flags and environment of NVIDIA's program.", "");
  ConfigManagerOptions options;
  app.set_version_flag("--version,-v", version());
  app.add_flag("--oneshot", options.oneshot, "link once and exit")->envname("ONESHOT");
  app.add_option("--kubeconfig", options.kubeconfig, "kubeconfig file (default: the Pod's service account)")
      ->envname("KUBECONFIG");
  app.add_option("--node-name", options.node_name, "node whose label to follow")->envname("NODE_NAME");
  app.add_option("--node-label", options.node_label, "label that names the config")->envname("NODE_LABEL");
  app.add_option("--config-file-srcdir", options.config_file_srcdir, "directory of configs")
      ->envname("CONFIG_FILE_SRCDIR");
  app.add_option("--config-file-dst", options.config_file_dst, "link to the active config")
      ->envname("CONFIG_FILE_DST");
  app.add_option("--default-config", options.default_config, "config of a node without the label")
      ->envname("DEFAULT_CONFIG");
  app.add_option("--fallback-strategies", options.fallback_strategies,
                 "named, single, empty, tried in this order")
      ->delimiter(',')
      ->envname("FALLBACK_STRATEGIES");
  app.add_option("--send-signal", options.send_signal, "whether to signal the process on a change")
      ->envname("SEND_SIGNAL");
  app.add_option("--signal", options.signal, "signal number to send")->envname("SIGNAL");
  app.add_option("--process-to-signal", options.process_to_signal, "process to signal, by its argv[0]")
      ->envname("PROCESS_TO_SIGNAL");
  if (const auto code = parse_arguments(app, argc, argv, true)) return *code;
  return run_config_manager(options);
}

int feature_discovery_main(int argc, char** argv) {
  CLI::App app{"Label a node with the properties of its NVIDIA GPUs", "gpu-feature-discovery"};
  set_help(app, "Takes the flags, environment and config file of NVIDIA's program.", "");
  agent::FeatureDiscoveryOptions options;
  options.sources.drop_in = options.sources.discovery = true;
  add_setting_options(app, options.sources.flags, true);
  app.set_version_flag("--version,-v", version());
  app.add_option("--kubeconfig", options.kubeconfig, "kubeconfig file (default: the Pod's service account)")
      ->envname("KUBECONFIG");
  app.add_option("--node-name", options.node_name, "node to label")->envname("NODE_NAME");
  app.add_option("--namespace", options.name_space, "namespace of the NodeFeature object")
      ->envname("NAMESPACE");
  app.add_option("--pod-name", options.pod_name, "Pod that owns the NodeFeature object")->envname("POD_NAME");
  // gpulet sends one request at a time, and few: there is nothing to throttle.
  std::string ignored;
  app.add_option("--kube-api-qps", ignored, "accepted and ignored")->envname("KUBE_API_QPS");
  app.add_option("--kube-api-burst", ignored, "accepted and ignored")->envname("KUBE_API_BURST");
  if (const auto code = parse_arguments(app, argc, argv, true)) return *code;
  options.sources.environment = config::process_environment();
  return run_feature_discovery_program(std::move(options));
}

}  // namespace gpulet::cli
