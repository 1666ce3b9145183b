#include "cli/dropin/mig_manager.h"

#include <signal.h>

#include <random>
#include <utility>

#include <CLI/CLI.hpp>

#include "agent/driver/nvml_adapters.h"
#include "agent/driver/nvml_driver.h"
#include "agent/mig/mig_manager.h"
#include "agent/mig/operand_pause.h"
#include "agent/resources/device_nodes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "cdi/generate.h"
#include "cdi/root.h"
#include "cli/dropin/config_manager.h"
#include "cli/dropin/programs.h"
#include "cli/main/command.h"
#include "cli/main/command_line.h"
#include "k8s/node_labels.h"
#include "k8s/node_pods.h"
#include "k8s/watcher.h"
#include "mig/layout_file.h"

namespace gpulet::cli {
namespace {

class OperatorMigManager {
 public:
  OperatorMigManager(MigManagerOptions options, k8s::ClientConfig access)
      : options_(std::move(options)),
        driver_(loop_, {.driver_root = options_.driver_root_ctr_path,
                        .events = false,
                        .hold = config::DriverHold::kOnDemand}),
        hardware_(loop_, [this] { return is_open_ ? &driver_ : nullptr; }),
        labels_(k8s::NodeLabelPatcher::start_label_patcher(loop_, access)),
        pods_(k8s::NodePods::start_node_pods(loop_, access)),
        pause_({.loop = loop_,
                .pods = *pods_,
                .name_space = options_.gpu_clients_namespace,
                .set_label = [this](const auto& key, const auto& value) { labels_->set_label(key, value); },
                .renew_specs = [this] { return renew_specs(); }},
               std::random_device{}()),
        nodes_(loop_, reporter_),
        manager_(make_ports(), std::random_device{}()),
        backoff_(kDriverRetry, std::random_device{}()),
        access_(std::move(access)) {
    config_.flags.container_driver_root = options_.driver_root_ctr_path;
    config_.flags.nvidia_driver_root = options_.driver_root;
  }

  Status run_until_stopped() {
    const auto signals = SignalWatcher::watch_signals(loop_, {SIGTERM, SIGINT, SIGQUIT}, [this](int signal) {
      log::info("stopping", {{"signal", signal}});
      loop_.stop_loop();
    });
    if (!signals) return fail(signals.error());
    const auto watch = k8s::NodeLabelWatcher::watch_node_labels(
        loop_, access_, {}, [this](const k8s::Labels& labels) { on_labels(labels); });
    open_node_driver();
    loop_.run_loop();
    return {};
  }

 private:
  agent::MigPorts make_ports() {
    return {
        .loop = loop_,
        .hardware = hardware_,
        .reporter = reporter_,
        // The operator mounts no PodResources here: processes alone hold a GPU.
        .pods = [this](auto done) { loop_.post([done = std::move(done)] { done(mig::PodsByDevice()); }); },
        .layouts = [this](const auto& name, auto gpus) { return operator_layouts(options_, name, gpus); },
        .withdraw = [](const auto&) {},
        .request_snapshot = [this] { read_snapshot(); },
        .publish_state =
            [this](std::string_view state) {
              // The pause publishes its begin itself, when the operands are stopped.
              if (!manager_.is_busy()) pause_.end_round(state);
            },
        .hooks = &pause_,
        .watch_exit = [this](unsigned pid,
                             auto ended) { return agent::watch_process_exit(loop_, pid, std::move(ended)); }};
  }

  void on_labels(const k8s::Labels& labels) {
    node_labels_ = labels;
    pause_.set_labels(labels);
    update_targets();
  }

  void update_targets() {
    if (!node_labels_ || !snapshot_) return;
    const auto targets = agent::mig_targets(*snapshot_, config_, *node_labels_);
    if (targets.empty() && !manager_.is_busy()) pause_.abandon_round();
    manager_.set_targets(targets, snapshot_);
  }

  void open_node_driver() {
    driver_.open_driver([this](const Status& opened) {
      if (!opened) return retry_driver(opened.error());
      is_open_ = true;
      read_snapshot();
    });
  }

  void read_snapshot() {
    driver_.read_snapshot([this](Result<inventory::Snapshot> snapshot) {
      if (!snapshot) return retry_driver(snapshot.error());
      backoff_.reset();
      failure_.clear();
      snapshot_ = std::make_shared<const inventory::Snapshot>(std::move(*snapshot));
      update_targets();
    });
  }

  void retry_driver(const Error& error) {
    if (std::exchange(failure_, error.full_message()) != error.full_message())
      log::warning("cannot list the GPUs", error);
    is_open_ = false;
    if (!manager_.is_busy()) pause_.abandon_round();
    retry_ = loop_.after(backoff_.next_delay(), [this] { open_node_driver(); });
  }

  Status renew_specs() {
    if (!snapshot_) return {};
    nodes_.create_missing_nodes(config_, snapshot_.get());
    return options_.cdi_enabled ? write_management_spec(options_, *snapshot_) : Status();
  }

  const MigManagerOptions options_;
  config::Config config_;
  EpollLoop loop_;
  agent::NodeReporter reporter_;  // the operator's role grants no events: the log only
  agent::NvmlDriver driver_;
  bool is_open_ = false;
  agent::NvmlMigHardware hardware_;
  std::unique_ptr<k8s::NodeLabelPatcher> labels_;
  std::unique_ptr<k8s::NodePods> pods_;
  agent::OperandPause pause_;
  agent::DeviceNodeCreator nodes_;
  agent::MigManager manager_;
  Backoff backoff_;
  const k8s::ClientConfig access_;
  std::optional<k8s::Labels> node_labels_;
  inventory::SnapshotPtr snapshot_;
  std::string failure_;
  Subscription retry_;
};

}  // namespace

Result<std::vector<std::optional<mig::Layout>>> operator_layouts(const MigManagerOptions& options,
                                                                 const std::string& name,
                                                                 std::span<const mig::State> gpus) {
  config::Config config;
  config.gpulet.mig.config_file = options.config_file;
  auto layouts = agent::mig_layouts(config, name, gpus);
  const bool is_unknown = !layouts && layouts.error().code() == Code::kNotFound;
  if (!is_unknown || !options.config_file.empty() || options.default_config_file.empty()) return layouts;
  config.gpulet.mig.config_file = options.default_config_file;
  return agent::mig_layouts(config, name, gpus);
}

Status write_management_spec(const MigManagerOptions& options, const inventory::Snapshot& snapshot) {
  const bool own_dev = !options.dev_root_ctr_path.empty();
  GPULET_TRY_ASSIGN(const auto roots, cdi::open_roots({.driver = options.driver_root_ctr_path,
                                                       .driver_on_host = options.driver_root,
                                                       .dev = options.dev_root_ctr_path,
                                                       .dev_on_host = own_dev ? options.dev_root : ""}));
  auto files = cdi::DeviceFiles::scan_dev_root(roots);
  GPULET_TRY_ASSIGN(const auto driver, cdi::find_driver_files(roots, snapshot.driver.version, {}));
  const auto found = cdi::collect_node_files(cdi::Mode::kManagement, roots, files, snapshot);
  GPULET_TRY_ASSIGN(const auto made, cdi::generate(snapshot, driver, found,
                                                   {.mode = cdi::Mode::kManagement,
                                                    .vendor = "management.nvidia.com",
                                                    .device_class = "gpu",
                                                    .hooks = {.path = options.cdi_hook_path}}));
  const std::string text = cdi::to_yaml(made.spec);
  if (const auto there = read_file(options.cdi_file); there && *there == text) return {};
  return write_file_atomic(options.cdi_file, text);
}

int run_mig_manager(const MigManagerOptions& options) {
  constexpr const char* kProgram = "nvidia-mig-manager";
  if (options.node_name.empty()) return print_error(kProgram, "--node-name (NODE_NAME): must not be empty");
  auto access = drop_in_access(options.kubeconfig, options.node_name);
  if (!access) return print_error(kProgram, access.error().full_message());
  if (options.with_reboot)
    log::warning("WITH_REBOOT: gpulet reboots no node; a MIG mode that needs it fails, with the reason");
  if (options.with_shutdown_host_gpu_clients)
    log::info(
        "WITH_SHUTDOWN_HOST_GPU_CLIENTS: gpulet stops no service of the host; a GPU that one holds "
        "fails, with its name");
  OperatorMigManager manager(options, std::move(*access));
  const auto status = manager.run_until_stopped();
  return status ? 0 : print_error(kProgram, status.error().full_message());
}

int mig_manager_main(int argc, char** argv) {
  CLI::App app{"Apply the MIG layout that a node's label names, around the GPU operator's Pods",
               "nvidia-mig-manager"};
  set_help(app, "Takes the flags and environment of NVIDIA's program.", "");
  MigManagerOptions options;
  app.set_version_flag("--version,-v", version());
  const auto text = [&app](const char* flag, std::string& value, const char* help, const char* variable) {
    app.add_option(flag, value, help)->envname(variable);
  };
  const auto boolean = [&app](const char* flag, bool& value, const char* help, const char* variable) {
    app.add_flag(flag, value, help)->envname(variable);
  };
  text("--kubeconfig", options.kubeconfig, "kubeconfig file (default: the Pod's service account)",
       "KUBECONFIG");
  text("-n,--node-name", options.node_name, "node whose label to follow", "NODE_NAME");
  text("-f,--config-file", options.config_file, "mig-parted layout file", "CONFIG_FILE");
  text("--default-config-file", options.default_config_file,
       "mig-parted layout file for names that the hardware does not give", "DEFAULT_CONFIG_FILE");
  text("-p,--default-gpu-clients-namespace", options.gpu_clients_namespace, "namespace of the operands",
       "DEFAULT_GPU_CLIENTS_NAMESPACE");
  boolean("-r,--with-reboot", options.with_reboot, "refused: gpulet reboots no node", "WITH_REBOOT");
  boolean("-d,--with-shutdown-host-gpu-clients", options.with_shutdown_host_gpu_clients,
          "ignored: gpulet stops no service of the host", "WITH_SHUTDOWN_HOST_GPU_CLIENTS");
  boolean("--cdi-enabled", options.cdi_enabled, "write the CDI spec of management containers", "CDI_ENABLED");
  text("-t,--nvidia-driver-root,--driver-root", options.driver_root, "driver root on the host",
       "NVIDIA_DRIVER_ROOT");
  text("-a,--driver-root-ctr-path", options.driver_root_ctr_path, "driver root in this container",
       "DRIVER_ROOT_CTR_PATH");
  text("-b,--dev-root", options.dev_root, "root of the device nodes on the host", "NVIDIA_DEV_ROOT");
  text("-j,--dev-root-ctr-path", options.dev_root_ctr_path, "root of the device nodes in this container",
       "DEV_ROOT_CTR_PATH");
  text("--nvidia-cdi-hook-path", options.cdi_hook_path, "hook program on the host", "NVIDIA_CDI_HOOK_PATH");
  // What only stopping the host's services and a script need.
  std::string ignored;
  const std::pair<const char*, const char*> unused[] = {
      {"-g,--gpu-clients-file", "GPU_CLIENTS_FILE"},
      {"-m,--host-root-mount", "HOST_ROOT_MOUNT"},
      {"-i,--host-nvidia-dir", "HOST_NVIDIA_DIR"},
      {"-o,--host-mig-manager-state-file", "HOST_MIG_MANAGER_STATE_FILE"},
      {"-k,--host-kubelet-systemd-service", "HOST_KUBELET_SYSTEMD_SERVICE"},
      {"-s,--reconfigure-script", "RECONFIGURE_SCRIPT"}};
  for (const auto& [flag, variable] : unused) text(flag, ignored, "accepted and ignored", variable);
  if (const auto code = parse_arguments(app, argc, argv, true)) return *code;
  return run_mig_manager(options);
}

}  // namespace gpulet::cli
