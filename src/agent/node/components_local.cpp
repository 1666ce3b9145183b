#include "agent/node/components.h"

#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>

#include "agent/driver/driver_release.h"
#include "agent/driver/driver_rights.h"
#include "agent/driver/nvml_adapters.h"
#include "agent/health/operator_interface.h"
#include "agent/mig/mig_manager.h"
#include "agent/node/devices.h"
#include "agent/resources/char_links.h"
#include "agent/resources/device_access.h"
#include "agent/resources/device_nodes.h"
#include "base/log.h"
#include "config/load.h"

namespace gpulet::agent {
namespace {

NvmlDriver* driver_of(const Node& node) { return node.devices->driver(); }

class OperatorComponent final : public Component {
 public:
  explicit OperatorComponent(Node& node)
      : node_(node),
        operator_(
            node.loop, *node.reporter,
            [this](const health::Evidence& evidence) { node_.devices->submit_evidence(evidence); },
            std::random_device{}()) {
    if (node.presence) operator_.set_held_presence(*node.presence);
  }

  void apply_config() override { set_paths(); }
  void attach_devices() override { set_paths(); }
  void on_health_changed(const health::HealthViewPtr& view,
                         const std::vector<health::StatusChange>&) override {
    operator_.on_health_view(view);
  }

 private:
  void set_paths() { operator_.set_paths(node_.config.gpulet.state_dir, node_.config.gpulet.health_file); }

  Node& node_;
  OperatorInterface operator_;
};

class ReleaseComponent final : public Component {
 public:
  explicit ReleaseComponent(Node& node) : node_(node) {}

  void apply_config() override { follow_state_dir(); }
  // Before the agent opens the driver: a release of before a restart applies from the start.
  void attach_devices() override { follow_state_dir(); }
  void on_node_labels() override { update_release(); }

 private:
  void follow_state_dir() {
    const auto& state_dir = node_.config.gpulet.state_dir;
    if (state_dir_ == state_dir) return;
    state_dir_ = state_dir;
    reads_all_ = false;
    watcher_.reset();
    request_.reset();
    lock_watcher_.reset();
    mig_apply_works_ = false;
    if (!state_dir.empty()) {
      lock_watcher_.emplace(node_.loop, *node_.reporter, mig_apply_lock_path(state_dir), [this](bool locked) {
        mig_apply_works_ = locked;
        update_release();
      });
      watcher_.emplace(node_.loop, *node_.reporter, release_path(state_dir), [this](const auto& request) {
        request_ = request;
        update_release();
      });
    }
    reads_all_ = true;
    update_release();
  }
  void update_release() {
    if (!reads_all_) return;
    node_.devices->set_driver_release(release_reason(request_, mig_apply_works_, node_.labels));
  }

  Node& node_;
  std::optional<std::string> state_dir_;  // as applied
  std::optional<ReleaseRequest> request_;
  bool reads_all_ = true;  // false: a file of the state directory has not been read yet
  bool mig_apply_works_ = false;
  std::optional<ReleaseWatcher> watcher_;
  std::optional<ReleaseLockWatcher> lock_watcher_;
};

class DriverRightsComponent final : public Component {
 public:
  explicit DriverRightsComponent(Node& node) : node_(node) {}

  void attach_devices() override { report_source(); }
  void apply_config() override { check_rights(); }
  void on_node_labels() override { check_rights(); }
  void on_state_changed() override {
    const auto seen = snapshot();
    if (seen && std::exchange(generation_, seen->generation) != seen->generation) check_rights();
  }

 private:
  inventory::SnapshotPtr snapshot() const {
    const auto* agent = node_.devices->agent();
    return agent != nullptr ? agent->status().snapshot : nullptr;
  }

  void check_rights() {
    const auto seen = snapshot();
    if (!seen) return;
    const bool changes_mig = !mig_targets(*seen, node_.config, node_.labels).empty();
    const auto before = std::exchange(missing_, missing_rights(collect_rights_evidence(node_.config, *seen),
                                                               node_.config, *seen, changes_mig));
    for (const auto& one : missing_) {
      if (std::ranges::find(before, one.right, &MissingRight::right) == before.end())
        node_.reporter->report_event(Reporter::Severity::kWarning, kMissingRightReason, one.message());
    }
    for (const auto& one : before) {
      if (std::ranges::find(missing_, one.right, &MissingRight::right) == missing_.end())
        log::info("a right at the driver is there, or no longer needed", {{"right", one.needed}});
    }
    report_source();
  }

  // XIDs of MIG instances are a source of each GPU in MIG mode.
  void report_source() {
    const auto monitor = std::ranges::find(missing_, DriverRight::kMigMonitor, &MissingRight::right);
    node_.devices->set_mig_event_status(
        monitor == missing_.end()
            ? std::nullopt
            : std::optional("of MIG instances: " + monitor->evidence + "; it needs " + monitor->needed));
  }

  Node& node_;
  std::vector<MissingRight> missing_;
  std::uint64_t generation_ = 0;  // of the snapshot last seen
};

// Between two rounds that create nodes: another program may remove them each time.
constexpr Duration kCreationPause = std::chrono::milliseconds(500);

class DeviceNodeComponent final : public Component {
 public:
  DeviceNodeComponent(Node& node, CdiController& cdi)
      : node_(node),
        cdi_(cdi),
        watcher_(
            node.loop, [this] { on_nodes_changed(); }, [this] { return is_plan_outdated(); }),
        creator_(node.loop, *node.reporter),
        links_(node.loop, node.config),
        access_(
            node.loop, *node.reporter, [&node] { return find_denied_nodes(driver_roots(node.config)); },
            restart_function(node)) {}

  void start() override {
    access_.check_access();
    follow_nodes();
  }
  void apply_config() override { follow_nodes(); }
  // A new snapshot may have MIG devices without nodes.
  void on_state_changed() override {
    const auto generation = snapshot() ? snapshot()->generation : 0;
    if (std::exchange(generation_, generation) != generation) follow_nodes();
    const auto* agent = node_.devices->agent();
    if (agent != nullptr && !agent->status().driver_answers) access_.check_access();
  }

 private:
  // The kubelet starts the container of a Pod again: as at a SIGTERM, so that no Pod comes in between.
  static std::function<void()> restart_function(const Node& node) {
    if (!node.is_in_pod()) return {};
    return [] { ::kill(::getpid(), SIGTERM); };
  }

  inventory::SnapshotPtr snapshot() const {
    const auto* agent = node_.devices->agent();
    return agent != nullptr ? agent->status().snapshot : nullptr;
  }

  // A plan may come between the removal of a node and its creation.
  bool is_plan_outdated() const {
    const auto root = find_device_root(node_.config);
    return node_.devices->lacks_compute() && root && find_compute_problem(*root).empty();
  }

  void follow_nodes() {
    watcher_.watch_roots(driver_roots(node_.config));
    if (creation_pause_) {
      is_creation_due_ = true;
    } else if (creator_.create_missing_nodes(node_.config, snapshot().get())) {
      creation_pause_ = node_.loop.after(kCreationPause, [this] {
        creation_pause_.reset();
        if (std::exchange(is_creation_due_, false)) follow_nodes();
      });
    }
    links_.create_links();
  }

  // A GPU whose nodes are gone is withdrawn at once; one whose nodes are there is offered once its spec has
  // them.
  void on_nodes_changed() {
    node_.devices->retry_driver();
    access_.check_access();
    follow_nodes();
    const bool rewrites = cdi_.rewrite_specs(node_.config);
    const auto root = find_device_root(node_.config);
    if (!rewrites || !root || !find_compute_problem(*root).empty()) node_.devices->replan();
    node_.components.for_each_reversed([](Component& component) { component.on_device_nodes_changed(); });
  }

  Node& node_;
  CdiController& cdi_;
  DeviceNodeWatcher watcher_;
  DeviceNodeCreator creator_;
  CharLinkKeeper links_;
  DeviceAccessWatcher access_;
  std::uint64_t generation_ = 0;  // of the snapshot last seen
  Subscription creation_pause_;
  bool is_creation_due_ = false;
};

// Returns freed memory to the kernel when a change has been worked off: reading a driver, a config or a list
// of the API server needs more memory than keeping its result. A trim locks the heap for about a millisecond.
// Source: malloc_trim(3).
class MemoryComponent final : public Component {
 public:
  explicit MemoryComponent(Node& node) : node_(node) {}

  void start() override { trim_later(); }
  void apply_config() override { trim_later(); }
  void on_state_changed() override { trim_later(); }

 private:
  static constexpr Duration kQuiet = std::chrono::seconds(1);

  void trim_later() {
    if (!timer_)
      timer_ = node_.loop.after(kQuiet, [this] {
        timer_.reset();
        ::malloc_trim(0);
      });
  }

  Node& node_;
  Subscription timer_;
};

}  // namespace

std::unique_ptr<Component> make_memory_component(Node& node) {
  return std::make_unique<MemoryComponent>(node);
}

std::unique_ptr<Component> make_driver_rights_component(Node& node) {
  return std::make_unique<DriverRightsComponent>(node);
}

std::unique_ptr<Component> make_device_node_component(Node& node, CdiController& cdi) {
  return std::make_unique<DeviceNodeComponent>(node, cdi);
}

MpsComponent::MpsComponent(Node& node)
    : node_(node),
      controller_(
          node.loop, *node.reporter, [&node] { return driver_of(node); },
          [&node] { node.devices->replan(); }) {}

void MpsComponent::add_counts(NodeCounts& counts) const {
  if (const auto problem = controller_.problem(); !problem.empty())
    counts.problems.push_back("MPS: " + problem);
}

// MPS daemons go on for the next agent to take over. A container ends them with itself: by its first process,
// and where that is not the agent (hostPID) by its cgroup, all of which its runtime kills. There they are
// stopped in order, for which the manifest's grace period has time.
void MpsComponent::stop(std::function<void()> done) {
  if (::getpid() != 1 && !node_.is_in_pod()) return done();
  controller_.end_daemons(std::move(done));
}

CdiComponent::CdiComponent(Node& node)
    : controller_(node.loop, *node.reporter, [&node] { node.devices->replan(); }, make_cdi_writer()) {}

void CdiComponent::add_counts(NodeCounts& counts) const {
  if (!controller_.last_error().empty()) counts.problems.push_back("CDI: " + controller_.last_error());
}

PagesComponent::PagesComponent(Node& node)
    : node_(node),
      pages_(
          node.loop, *node.reporter, [&node] { return node.devices->agent(); },
          [&node] {
            NodeCounts counts;
            node.components.for_each_reversed(
                [&](const Component& component) { component.add_counts(counts); });
            return counts;
          },
          node.sources.environment, node.version, node.loads) {
  pages_.set_config_text(node.config_text);
}

void PagesComponent::start() {
  if (node_.client_config) pages_.set_access(*node_.client_config);
  pages_.start_listening(node_.config);
  pages_.publish_pages();
}

// The exporter writes nothing on the node.
std::string PagesComponent::state_dir() const {
  return node_.sources.exporter ? std::string() : node_.config.gpulet.state_dir;
}

void PagesComponent::apply_config() {
  pages_.set_state_dir(state_dir());
  pages_.set_config_text(node_.config_text);
  pages_.apply_pages_config(node_.config);
}

void PagesComponent::detach_devices() { pages_.detach_driver(); }

void PagesComponent::attach_devices() {
  pages_.set_state_dir(state_dir());
  pages_.attach_driver(*node_.devices->driver(), node_.devices->pod_resources(), node_.config);
}

void PagesComponent::on_state_changed() { pages_.publish_pages(); }

void PagesComponent::on_allocated() { pages_.publish_soon(); }

void PagesComponent::on_health_changed(const health::HealthViewPtr& view,
                                       const std::vector<health::StatusChange>& changes) {
  pages_.record_health(view, changes);
}

std::unique_ptr<Component> make_operator_component(Node& node) {
  return std::make_unique<OperatorComponent>(node);
}

std::unique_ptr<Component> make_release_component(Node& node) {
  return std::make_unique<ReleaseComponent>(node);
}

namespace {

// How long to wait for the Node label that selects the config before using the config for nodes without a
// label.
constexpr Duration kLabelTimeout = std::chrono::seconds(5);
// Between reads of a config file that the kernel could not read.
constexpr BackoffLimits kConfigReadBackoff{std::chrono::seconds(1), std::chrono::minutes(1)};
constexpr std::uint64_t kConfigReadSeed = 89;

}  // namespace

ConfigReloader::ConfigReloader(Node& node)
    : node_(node), read_backoff_(kConfigReadBackoff, kConfigReadSeed) {}

void ConfigReloader::start() {
  if (node_.is_config_pending) return watch_directory();
  watch_file();
}

void ConfigReloader::watch_file() {
  if (node_.config.config_file.empty()) return;
  auto watch = FileWatcher::watch_path(node_.loop, node_.config.config_file, [this] { reload_config(); });
  if (!watch) return log::warning("cannot watch the config file; send SIGHUP to reload it", watch.error());
  file_watch_ = std::move(*watch);
}

// Nothing is offered before it is known which config is this node's.
void ConfigReloader::watch_directory() {
  auto watcher = config::ConfigDirectoryWatcher::watch_directory(
      node_.loop, node_.config.node_config,
      [this](const std::string& path, const std::optional<std::string>& problem) {
        if (problem) node_.reporter->report_event(Reporter::Severity::kWarning, "NodeConfig", *problem);
        node_.sources.flags["config-file"] = {path};
        reload_config();
      });
  if (!watcher) {
    node_.reporter->report_event(Reporter::Severity::kWarning, "NodeConfig", watcher.error().full_message());
    node_.is_config_pending = false;
    return watch_file();
  }
  directory_ = std::move(*watcher);
  label_timeout_ = node_.loop.after(kLabelTimeout, [this] {
    if (node_.is_config_pending) directory_->set_label(std::nullopt);
  });
}

void ConfigReloader::on_node_labels() {
  if (!directory_) return;
  const auto label = node_.labels.find(node_.config.node_config.label);
  directory_->set_label(label == node_.labels.end() ? std::nullopt : std::optional(label->second));
}

void ConfigReloader::reload_config() {
  auto sources = node_.sources;
  node_.is_config_pending = false;
  read_retry_.reset();
  if (const auto read = config::read_config_file(sources); !read) {
    const bool can_pass = read.error().code() == Code::kIo;  // out of descriptors, or an I/O error
    if (can_pass) read_retry_ = node_.loop.after(read_backoff_.next_delay(), [this] { reload_config(); });
    const auto text = read.error().full_message();
    if (std::exchange(read_error_, text) != text || !can_pass) node_.devices->reject_config(read.error());
    return;
  }
  read_error_.clear();
  read_backoff_.reset();
  const auto* agent = node_.devices->agent();
  if (agent != nullptr && last_content_ == sources.file_content && !agent->status().config_error) return;
  auto loaded = config::load(sources);
  last_content_ = sources.file_content;
  if (!loaded) return node_.devices->reject_config(loaded.error());
  for (const auto& warning : loaded->warnings) log::warning(warning);
  node_.config_text = config::print_yaml(*loaded);
  node_.config = std::move(loaded->config);
  configure_log(node_.config.gpulet);
  node_.components.for_each_reversed([](Component& component) { component.apply_config(); });
}

}  // namespace gpulet::agent
