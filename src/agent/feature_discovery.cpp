#include "agent/feature_discovery.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "agent/agent.h"
#include "agent/label_care.h"
#include "agent/node.h"
#include "agent/nvml_driver.h"
#include "base/backoff.h"
#include "base/log.h"
#include "base/signals.h"

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
Result<std::optional<cluster::Access>> access_for(const FeatureDiscoveryOptions& options,
                                                  const config::Config& config) {
  if (!needs_cluster(config)) return std::nullopt;
  if (options.node_name.empty()) {
    return fail(
        Code::kFailedPrecondition,
        "not set; the Pod's manifest must set it from spec.nodeName, or USE_NODE_FEATURE_API to false",
        "NODE_NAME");
  }
  if (!options.kubeconfig.empty()) {
    GPULET_TRY_ASSIGN(auto access, cluster::access_from_kubeconfig(options.kubeconfig));
    access.node_name = options.node_name;
    return std::optional(std::move(access));
  }
  auto environment = options.sources.environment;
  environment["NODE_NAME"] = options.node_name;
  GPULET_TRY_ASSIGN(auto access, cluster::in_cluster_access(environment));
  if (access) return access;
  return fail(Code::kFailedPrecondition, "not set, so this is no Pod: name a file with --kubeconfig",
              "KUBERNETES_SERVICE_HOST");
}

class Discovery {
 public:
  Discovery(FeatureDiscoveryOptions options, config::Config config)
      : options_(std::move(options)),
        config_(std::move(config)),
        backoff_(kDriverBackoff, std::random_device{}()) {}

  Status run() {
    const auto signals = SignalWatch::start(loop_, {SIGTERM, SIGINT, SIGQUIT, SIGHUP}, [this](int signal) {
      if (signal == SIGHUP) return reload();
      log::info("told to end", {{"signal", signal}});
      loop_.stop();
    });
    if (!signals) return fail(signals.error());
    if (const auto status = build(); !status) return status;
    if (config_.gfd.oneshot) {
      limit_ = loop_.after(options_.oneshot_limit, [this] {
        const auto trouble = care_->trouble();
        end(Error(Code::kDeadlineExceeded, trouble.empty() ? "no output took the labels" : trouble));
      });
    }
    loop_.run();
    care_.reset();
    driver_.reset();
    return ended_;
  }

 private:
  Status build() {
    GPULET_TRY(label());
    watch();
    return {};
  }

  Status label() {
    GPULET_TRY_ASSIGN(auto access, access_for(options_, config_));
    has_access_ = access.has_value();
    care_.emplace(LabelCarePorts{.loop = loop_,
                                 .access = std::move(access),
                                 .feature = {options_.name_space, options_.pod_name},
                                 .print = options_.print,
                                 .settled =
                                     [this] {
                                       if (config_.gfd.oneshot) loop_.stop();
                                     }},
                  config_);
    return {};
  }

  void watch() {
    driver_ = std::make_unique<NvmlDriver>(
        loop_, NvmlDriverOptions{.driver_root = config_.flags.container_driver_root,
                                 .call_timeout = config_.gpulet.driver_call_timeout});
    driver_->set_events({.evidence = [](const auto&) {},
                         .changed = [this] { read_after(kReadDelay); },
                         .wait_failed = [](const auto&) {}});
    reading_ = again_ = opened_once_ = false;
    open();
  }

  void end(const Error& error) {
    ended_ = fail(error);
    loop_.stop();
  }

  void open() {
    timer_.reset();
    driver_->open([this](const Status& status) {
      if (status) return read();
      if (!opened_once_ && config_.flags.fail_on_init_error) {
        return end(status.error().with(
            "the NVIDIA driver cannot be used (set failOnInitError to false to wait for it)"));
      }
      driver_failed(status.error());
    });
  }

  void driver_failed(const Error& error) {
    if (std::exchange(told_, error.text()) != error.text()) {
      log::warning("the driver does not answer; its labels stay for a while", error);
    }
    // Once is now: a node without a driver has no GPU to speak of.
    if (config_.gfd.oneshot) snapshot_ = std::make_shared<const inventory::Snapshot>();
    care_->update(snapshot_, config_.gfd.oneshot, {});
    timer_ = loop_.after(backoff_.next(), [this] { open(); });
  }

  void read_after(Duration delay) {
    if (reading_) {
      again_ = true;
    } else if (opened_once_) {
      timer_ = loop_.after(delay, [this] { read(); });
    }
  }

  void read() {
    opened_once_ = true;
    timer_.reset();
    reading_ = true;
    again_ = false;
    driver_->read([this](Result<inventory::Snapshot> snapshot) {
      reading_ = false;
      if (!snapshot) return driver_failed(snapshot.error());
      told_.clear();
      backoff_.reset();
      snapshot_ = std::make_shared<const inventory::Snapshot>(std::move(*snapshot));
      care_->update(snapshot_, true, {});
      if (again_) return read_after(kReadDelay);
      const auto& interval = config_.gfd.sleep_interval;
      if (!interval) return;
      // A shorter one is a mistake that would ask the driver without an end.
      const auto wait = std::max<Duration>(std::chrono::duration_cast<Duration>(*interval), kLeastInterval);
      timer_ = loop_.after(wait, [this] {
        care_->look_again();
        read();
      });
    });
  }

  // A configuration that is wrong changes nothing.
  void reload() {
    auto config = load_config(options_.sources);
    if (!config) return log::warning("the configuration is not loaded; the one before holds", config.error());
    const bool moved = config->flags.container_driver_root != config_.flags.container_driver_root;
    config_ = std::move(*config);
    log::info("the configuration is loaded anew");
    if (has_access_ || !needs_cluster(config_)) {
      care_->apply(config_);
    } else if (const auto status = label(); !status) {
      return end(status.error());
    }
    if (moved) return watch();
    read_after(Duration::zero());
  }

  static constexpr Duration kLeastInterval = std::chrono::seconds(1);

  FeatureDiscoveryOptions options_;
  config::Config config_;
  EpollLoop loop_;
  Backoff backoff_;
  std::optional<LabelCare> care_;
  std::unique_ptr<NvmlDriver> driver_;
  inventory::SnapshotPtr snapshot_;
  bool has_access_ = false;
  bool opened_once_ = false, reading_ = false, again_ = false;
  std::string told_;
  Subscription timer_, limit_;
  Status ended_;
};

}  // namespace

Status run_feature_discovery(FeatureDiscoveryOptions options) {
  GPULET_TRY_ASSIGN(auto config, load_config(options.sources));
  // Never destroyed but for what run() ends: a thread may still sit in a driver call that never returns.
  auto* discovery = new Discovery(std::move(options), std::move(config));
  return discovery->run();
}

}  // namespace gpulet::agent
