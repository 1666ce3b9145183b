#include "cli/mps_command.h"

#include <signal.h>
#include <unistd.h>

#include <iostream>
#include <random>
#include <set>

#include "agent/node.h"
#include "agent/nvml_driver.h"
#include "base/file_watch.h"
#include "base/log.h"
#include "base/signals.h"
#include "mps/compute_mode.h"
#include "mps/manager.h"
#include "mps/shm.h"
#include "partition/resources.h"

namespace gpulet::cli {
namespace {

using namespace std::chrono_literals;

constexpr BackoffLimits kDriverRetry{500ms, 30s};
// GPUs that come, go or change their MIG mode are seen this often.
constexpr Duration kReadInterval = 30s;

Result<config::Loaded> load_settings(config::Sources sources, const std::string& root) {
  // The program has no such flag; the settings want one with MPS.
  sources.environment.try_emplace("MPS_ROOT", root);
  GPULET_TRY(config::read_config_file(sources));
  return config::load(sources);
}

class MpsNode {
 public:
  MpsNode(const MpsOptions& options, config::Config config)
      : options_(options),
        config_(std::move(config)),
        driver_(loop_, {.driver_root = config_.flags.container_driver_root,
                        .call_timeout = config_.gpulet.driver_call_timeout,
                        .events = false}),
        manager_(loop_,
                 {.root = options.root,
                  .driver_root = config_.flags.container_driver_root,
                  .seed = std::random_device{}()},
                 mps::compute_mode_by_nvidia_smi(loop_, config_.flags.container_driver_root),
                 [](const std::string& name, const inventory::Health& health) {
                   if (health.healthy) log::info("an MPS control daemon runs", {{"daemon", name}});
                 }),
        backoff_(kDriverRetry, std::random_device{}()) {}

  Status run() {
    const auto signals = SignalWatch::start(loop_, {SIGTERM, SIGINT, SIGQUIT, SIGHUP},
                                            [this](int signal) { on_signal(signal); });
    if (!signals) return fail(signals.error());
    watch_config();
    open();
    loop_.run();
    return {};
  }

 private:
  void on_signal(int signal) {
    if (signal == SIGHUP) return reload();
    log::info("told to end", {{"signal", signal}});
    if (ending_) return loop_.stop();
    ending_ = true;
    next_.reset();
    manager_.stop([this] { loop_.stop(); });
  }

  void watch_config() {
    config::Sources sources = options_.sources;
    if (!config::read_config_file(sources) || sources.file_path.empty()) return;
    auto watch = FileWatch::start(loop_, sources.file_path, [this] { reload(); });
    if (watch) {
      config_watch_ = std::move(*watch);
    } else {
      log::warning("the config file is not watched: send SIGHUP when it has changed", watch.error());
    }
  }

  void reload() {
    if (ending_) return;
    auto loaded = load_settings(options_.sources, options_.root);
    if (!loaded) return log::error("the settings are wrong: those from before stay", loaded.error());
    log::info("the settings are loaded anew");
    for (const auto& warning : loaded->warnings) log::warning(warning);
    config_ = std::move(loaded->config);
    if (snapshot_) apply();
  }

  void open() {
    driver_.open([this](const Status& opened) { opened ? read() : retry(opened.error()); });
  }

  void read() {
    driver_.read([this](Result<inventory::Snapshot> snapshot) {
      if (!snapshot) return retry(snapshot.error());
      backoff_.reset();
      failure_.clear();
      snapshot_ = std::move(*snapshot);
      if (ending_) return;
      apply();
      next_ = loop_.after(kReadInterval, [this] { read(); });
    });
  }

  // The daemons stay as they are.
  void retry(const Error& error) {
    if (ending_) return;
    if (failure_ != error.text()) log::warning("the driver does not say what GPUs there are", error);
    failure_ = error.text();
    next_ = loop_.after(backoff_.next(), [this] { open(); });
  }

  void apply() {
    const auto plan = partition::plan(*snapshot_, config_);
    for (const auto& note : plan.notes) {
      if (noted_.insert(note.message).second) log::warning(note.message);
    }
    auto specs = mps::plan(plan.resources, *snapshot_);
    if (specs.empty() && !told_idle_) log::info("no devices are configured for MPS sharing");
    told_idle_ = specs.empty();
    manager_.apply(std::move(specs));
  }

  MpsOptions options_;
  config::Config config_;
  EpollLoop loop_;
  agent::NvmlDriver driver_;
  mps::Manager manager_;
  std::unique_ptr<FileWatch> config_watch_;
  std::optional<inventory::Snapshot> snapshot_;
  std::set<std::string> noted_;
  std::string failure_;
  Backoff backoff_;
  Subscription next_;
  bool told_idle_ = false;
  bool ending_ = false;
};

}  // namespace

int mps_control_daemon(const MpsOptions& options) {
  auto loaded = load_settings(options.sources, options.root);
  if (!loaded) {
    std::cerr << "mps-control-daemon: " << loaded.error().text() << '\n';
    return 1;
  }
  agent::configure_log(loaded->config.gpulet);
  for (const auto& warning : loaded->warnings) log::warning(warning);
  MpsNode node(options, std::move(loaded->config));
  const auto status = node.run();
  if (!status) std::cerr << "mps-control-daemon: " << status.error().text() << std::endl;
  ::_exit(status ? 0 : 1);
}

int mps_mount_shm(const std::string& root) {
  const auto mounted = mps::mount_shm(root);
  if (mounted) return 0;
  std::cerr << "mps-control-daemon: " << mounted.error().text() << '\n';
  return 1;
}

}  // namespace gpulet::cli
