#include "agent/publish/feature_discovery.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "agent/driver/gpu_presence.h"
#include "agent/driver/nvml_driver.h"
#include "agent/node/agent.h"
#include "agent/node/node.h"
#include "agent/publish/label_controller.h"
#include "agent/resources/device_nodes.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/process.h"
#include "inventory/pci_gpus.h"
#include "partition/rules.h"

namespace gpulet::agent {
namespace {

using config::LabelOutput;

Result<config::Config> load_config(const config::Sources& given) {
  auto sources = given;
  GPULET_TRY(config::read_config_file(sources));
  GPULET_TRY_ASSIGN(auto loaded, config::load(sources));
  configure_log(loaded.config.gpulet);
  for (const auto& warning : loaded.warnings) log::warning(warning);
  return std::move(loaded.config);
}

bool needs_cluster(const config::Config& config) {
  const auto& outputs = config.gpulet.labels.outputs;
  return std::ranges::any_of(outputs, [](auto output) { return output != LabelOutput::kFile; });
}

// nullopt where no output needs a cluster.
Result<std::optional<k8s::ClientConfig>> find_cluster_access(const FeatureDiscoveryOptions& options,
                                                             const config::Config& config) {
  if (!needs_cluster(config)) return std::nullopt;
  if (options.node_name.empty()) {
    return fail(
        Code::kFailedPrecondition,
        "not set; the Pod's manifest must set it from spec.nodeName, or USE_NODE_FEATURE_API to false",
        "NODE_NAME");
  }
  if (!options.kubeconfig.empty()) {
    GPULET_TRY_ASSIGN(auto access, k8s::load_kubeconfig(options.kubeconfig));
    access.node_name = options.node_name;
    return std::optional(std::move(access));
  }
  auto environment = options.sources.environment;
  environment["NODE_NAME"] = options.node_name;
  GPULET_TRY_ASSIGN(auto access, k8s::load_in_cluster_config(environment));
  if (access) return access;
  return fail(Code::kFailedPrecondition, "not set, so this is not a Pod: name a file with --kubeconfig",
              "KUBERNETES_SERVICE_HOST");
}

class FeatureDiscovery {
 public:
  FeatureDiscovery(FeatureDiscoveryOptions options, config::Config config)
      : options_(std::move(options)),
        config_(std::move(config)),
        backoff_(kDriverBackoff, std::random_device{}()) {}

  Status run_discovery() {
    const auto signals =
        SignalWatcher::watch_signals(loop_, {SIGTERM, SIGINT, SIGQUIT, SIGHUP}, [this](int signal) {
          if (signal == SIGHUP) return reload_config();
          log::info("stopping on a signal", {{"signal", signal}});
          loop_.stop_loop();
        });
    if (!signals) return fail(signals.error());
    if (const auto status = start_discovery(); !status) return status;
    if (config_.gfd.oneshot) {
      limit_ = loop_.after(options_.oneshot_limit, [this] {
        const auto trouble = label_controller_->last_problem();
        end_with(Error(Code::kDeadlineExceeded, trouble.empty() ? "no output accepted the labels" : trouble));
      });
    }
    loop_.run_loop();
    label_controller_.reset();
    driver_.reset();
    return result_;
  }

 private:
  Status start_discovery() {
    GPULET_TRY(start_labels());
    start_driver();
    return {};
  }

  Status start_labels() {
    GPULET_TRY_ASSIGN(auto access, find_cluster_access(options_, config_));
    has_access_ = access.has_value();
    label_controller_.emplace(LabelControllerPorts{.loop = loop_,
                                                   .access = std::move(access),
                                                   .feature = {options_.name_space, options_.pod_name},
                                                   .print = options_.print,
                                                   .settled =
                                                       [this] {
                                                         if (config_.gfd.oneshot) loop_.stop_loop();
                                                       }},
                              config_);
    return {};
  }

  // With strategy vfio, sysfs takes the place of the driver.
  bool uses_vfio() const {
    return config_.flags.device_discovery_strategy == config::DeviceDiscoveryStrategy::kVfio;
  }

  void start_driver() {
    driver_.reset();
    reading_ = read_again_ = opened_once_ = false;
    if (uses_vfio()) {
      timer_ = loop_.after(Duration::zero(), [this] { read_driver(); });
      return;
    }
    driver_ = std::make_unique<NvmlDriver>(
        loop_, NvmlDriverOptions{.driver_root = config_.flags.container_driver_root,
                                 .call_timeout = config_.gpulet.driver_call_timeout});
    driver_->set_events({.evidence = [](const auto&) {},
                         .changed = [this] { schedule_reading(kReadDelay); },
                         .wait_failed = [](const auto&) {}});
    open_driver();
  }

  void end_with(const Error& error) {
    result_ = fail(error);
    loop_.stop_loop();
  }

  void open_driver() {
    timer_.reset();
    driver_->open_driver([this](const Status& status) {
      if (status) return read_driver();
      const auto error = explain_driver_error(status.error(), driver_roots(config_));
      if (!opened_once_ && config_.flags.fail_on_init_error) {
        return end_with(
            error.with_context("cannot use the NVIDIA driver (set failOnInitError to false to wait for it)"));
      }
      driver_failed(error);
    });
  }

  void driver_failed(const Error& error) {
    if (std::exchange(reported_error_, error.full_message()) != error.full_message()) {
      log::warning("the driver does not respond; keeping the labels for now", error);
    }
    // With oneshot, a node without a driver has no GPUs.
    if (config_.gfd.oneshot) snapshot_ = std::make_shared<const inventory::Snapshot>();
    label_controller_->on_node_changed(snapshot_, config_.gfd.oneshot, {});
    timer_ = loop_.after(backoff_.next_delay(), [this] { uses_vfio() ? read_driver() : open_driver(); });
  }

  void schedule_reading(Duration delay) {
    if (reading_) {
      read_again_ = true;
    } else if (opened_once_) {
      timer_ = loop_.after(delay, [this] { read_driver(); });
    }
  }

  void read_driver() {
    opened_once_ = true;
    timer_.reset();
    reading_ = true;
    read_again_ = false;
    if (uses_vfio())
      return on_snapshot(inventory::read_vfio_gpus({config_.flags.container_driver_root, "/"}));
    driver_->read_snapshot(
        [this](Result<inventory::Snapshot> snapshot) { on_snapshot(std::move(snapshot)); });
  }

  void on_snapshot(Result<inventory::Snapshot> snapshot) {
    reading_ = false;
    if (!snapshot) return driver_failed(snapshot.error());
    reported_error_.clear();
    backoff_.reset();
    set_snapshot(std::move(*snapshot));
    label_controller_->on_node_changed(snapshot_, true, {});
    if (read_again_) return schedule_reading(kReadDelay);
    const auto& interval = config_.gfd.sleep_interval;
    if (!interval) return;
    // A shorter interval would read the driver without a pause.
    const auto wait = std::max<Duration>(std::chrono::duration_cast<Duration>(*interval), kLeastInterval);
    timer_ = loop_.after(wait, [this] {
      label_controller_->verify_outputs();
      read_driver();
    });
  }

  void set_snapshot(inventory::Snapshot snapshot) {
    partition::mark_excluded_gpus(snapshot, config_, {});
    snapshot_ = std::make_shared<const inventory::Snapshot>(std::move(snapshot));
  }

  // An invalid configuration changes nothing.
  void reload_config() {
    auto config = load_config(options_.sources);
    if (!config)
      return log::warning("cannot load the configuration; the previous one stays in force", config.error());
    const bool vfio = uses_vfio();
    const bool moved = config->flags.container_driver_root != config_.flags.container_driver_root;
    config_ = std::move(*config);
    log::info("configuration reloaded");
    if (snapshot_) set_snapshot(*snapshot_);
    if (has_access_ || !needs_cluster(config_)) {
      label_controller_->apply_label_config(config_);
    } else if (const auto status = start_labels(); !status) {
      return end_with(status.error());
    }
    if (moved || vfio != uses_vfio()) return start_driver();
    schedule_reading(Duration::zero());
  }

  static constexpr Duration kLeastInterval = std::chrono::seconds(1);

  FeatureDiscoveryOptions options_;
  config::Config config_;
  EpollLoop loop_;
  Backoff backoff_;
  std::optional<LabelController> label_controller_;
  std::unique_ptr<NvmlDriver> driver_;
  inventory::SnapshotPtr snapshot_;
  bool has_access_ = false;
  bool opened_once_ = false, reading_ = false, read_again_ = false;
  std::string reported_error_;
  Subscription timer_, limit_;
  Status result_;
};

}  // namespace

Status run_feature_discovery(FeatureDiscoveryOptions options) {
  GPULET_TRY_ASSIGN(auto config, load_config(options.sources));
  // Only what run_discovery() ends is destroyed: a thread may still be in a driver call that never returns.
  auto* discovery = new FeatureDiscovery(std::move(options), std::move(config));
  return discovery->run_discovery();
}

}  // namespace gpulet::agent
