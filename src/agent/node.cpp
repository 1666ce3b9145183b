#include "agent/node.h"

#include <signal.h>
#include <unistd.h>

#include <random>

#include "agent/agent.h"
#include "agent/cdi_care.h"
#include "agent/fault_care.h"
#include "agent/gpu_node_care.h"
#include "agent/health_memory.h"
#include "agent/kernel_log.h"
#include "agent/label_care.h"
#include "agent/mig_hooks.h"
#include "agent/mig_manager.h"
#include "agent/mig_wishes.h"
#include "agent/mps_care.h"
#include "agent/node_pages.h"
#include "agent/nvml_driver.h"
#include "agent/nvml_mig.h"
#include "agent/operator_care.h"
#include "agent/published_node.h"
#include "agent/reporter.h"
#include "agent/rights_care.h"
#include "base/file_watch.h"
#include "base/log.h"
#include "base/signals.h"
#include "cluster/node_leaving.h"
#include "cluster/node_patch.h"
#include "cluster/node_watch.h"
#include "cluster/object_apply.h"
#include "config/config_folder.h"
#include "config/print.h"
#include "kubelet/plugin_host.h"
#include "kubelet/pod_resources.h"

namespace gpulet::agent {
namespace {

using namespace std::chrono_literals;

// A node whose config its label chooses waits so long for the label before it goes on as a node without one.
constexpr Duration kLabelPatience = 5s;

// Within it the MPS daemons end, or are ended with us: less than the grace period of deploy/static.
constexpr Duration kMpsEndLimit = 3s;

std::string health_state_of(const config::Config& config) {
  const auto& folder = config.gpulet.state_dir;
  return folder.empty() ? std::string() : folder + "/" + kHealthStateFile;
}

std::string kubelet_socket_of(const config::Config& config) {
  return config.kubelet_socket.value_or(config.device_plugin_dir() + "/kubelet.sock");
}

// Settings that say where the node's parts are: a change of one means new parts, not a new process.
struct Places {
  explicit Places(const config::Config& config)
      : device_plugin_dir(config.device_plugin_dir()),
        kubelet_socket(kubelet_socket_of(config)),
        driver_root(config.flags.container_driver_root),
        driver_call_timeout(config.gpulet.driver_call_timeout) {}
  std::string device_plugin_dir, kubelet_socket, driver_root;
  std::chrono::milliseconds driver_call_timeout;
  friend bool operator==(const Places&, const Places&) = default;
};

class Node {
 public:
  Node(config::Sources sources, config::Loaded loaded, std::string version)
      : sources_(std::move(sources)),
        config_text_(config::print_yaml(loaded)),
        config_(std::move(loaded.config)),
        version_(std::move(version)) {}

  Status run() {
    const auto signals = SignalWatch::start(loop_, {SIGTERM, SIGINT, SIGQUIT, SIGHUP}, [this](int signal) {
      if (signal == SIGHUP) {
        reload();
      } else {
        log::info("told to end", {{"signal", signal}});
        end();
      }
    });
    if (!signals) return fail(signals.error());
    rpc_ = kubelet::make_rpc();
    reporter_ = make_reporter(loop_, sources_.environment);
    operator_.emplace(
        loop_, *reporter_,
        [this](const health::Evidence& wish) {
          if (agent_) agent_->take(wish);
        },
        std::random_device{}());
    mps_.emplace(
        loop_, *reporter_, [this] { return driver_.get(); },
        [this] {
          if (agent_) agent_->replan();
        });
    cdi_.emplace(
        loop_, *reporter_,
        [this] {
          if (agent_) agent_->replan();
        },
        make_cdi_writer());
    pages_.emplace(
        loop_, *reporter_, [this] { return agent_ ? &*agent_ : nullptr; }, [this] { return counts(); },
        sources_.environment, version_);
    pages_->on_config(config_text_);
    manage_mig();
    if (config_.node_config.folder.empty()) {
      build();
    } else {
      follow_config_folder();
    }
    // After the agent's first steps: nothing that waits for the kubelet waits for these.
    loop_.post([this] {
      follow_labels();
      watch_config();
      pages_->listen(config_);
      pages_->publish();
    });
    loop_.run();
    withdraw();
    return ended_;
  }

 private:
  void build() {
    const Places places(config_);
    places_.emplace(places);
    driver_ = std::make_unique<NvmlDriver>(
        loop_,
        NvmlDriverOptions{.driver_root = places.driver_root, .call_timeout = places.driver_call_timeout});
    host_ = kubelet::make_plugin_host(
        loop_, rpc_, {.folder = places.device_plugin_dir, .kubelet_socket = places.kubelet_socket});
    pod_resources_ =
        kubelet::make_pod_resources(loop_, rpc_, config_.gpulet.kubelet_dir + "/pod-resources/kubelet.sock");
    Ports ports{
        .loop = loop_,
        .driver = *driver_,
        .host = *host_,
        .reporter = *reporter_,
        .pods = [this](auto done) { list_pods(std::move(done)); },
        .files = read_node_files,
        .daemons = [this](const auto& specs) { return mps_->wants(specs, config_); },
        .cdi = [this](const auto& snapshot) { return cdi_->wants(snapshot, config_); },
        .changed = [this] { look_again_soon(); },
        .memory = &health_file_,
        .health_changed =
            [this](const auto& view, const auto& changes) {
              pages_->on_health(view, changes);
              tell_health(view);
            },
        .allocated =
            [this] {
              if (gpu_node_care_) gpu_node_care_->allocated();
            },
    };
    health_file_.move_to(health_state_of(config_));
    operator_->apply(config_.gpulet.state_dir, config_.gpulet.health_file);
    agent_.emplace(std::move(ports), config_, std::random_device{}(), [this](const Error& error) {
      ended_ = fail(error);
      loop_.stop();
    });
    agent_->set_facts(facts_);
    pages_->attach(*driver_, *pod_resources_, config_);
    follow_kernel_log();
    agent_->start();
  }

  // The config says which; one that cannot be read is said once, and is part of each GPU's health.
  void follow_kernel_log() {
    const auto& path = config_.gpulet.kernel_log;
    if (kernel_log_ && followed_log_ == path) return agent_->kernel_log(std::nullopt);
    kernel_log_.reset();
    const bool said = std::exchange(followed_log_, path) == path;
    if (path.empty()) return agent_->kernel_log("gpulet.kernelLog is empty");
    const auto ended = [this](const Error& error) {
      log::warning("the kernel's log is no longer read", error);
      followed_log_.reset();  // the next configuration tries again
      if (agent_) agent_->kernel_log(error.text());
    };
    auto log = KernelLog::start(loop_, path,
                                {.line =
                                     [this](const auto& line) {
                                       if (agent_) agent_->take(line);
                                     },
                                 .ended = ended});
    if (!log && !said) log::info("the kernel's log is not read", {{"error", log.error().text()}});
    agent_->kernel_log(log ? std::nullopt : std::optional(log.error().text()));
    if (log) kernel_log_ = std::move(*log);
  }

  // A Pod is deleted because another comes: no Pod is to be bound to the node in between. A second signal,
  // and a service of a host, do not wait.
  void end() {
    if (leaving_ || !in_pod() || !access_ || !agent_) return end_daemons();
    std::vector<std::string> resources;
    for (const auto& offer : agent_->offers()) resources.push_back(offer->resource.name.str());
    if (resources.empty()) return end_daemons();
    const auto close = [this] { agent_.reset(), host_.reset(); };
    leaving_ = cluster::NodeLeaving::start(loop_, *access_, resources, close, [this] { end_daemons(); });
  }

  bool in_pod() const { return sources_.environment.contains("KUBERNETES_SERVICE_HOST"); }

  // MPS daemons go on for the next agent to take over. A container takes them with it: by its first process,
  // and where that is not the agent (hostPID) by its cgroup, all of which its runtime kills. There they are
  // ended in order, for which the manifest's grace period has time.
  void end_daemons() {
    if (::getpid() != 1 && !in_pod()) return loop_.stop();
    end_limit_ = loop_.after(kMpsEndLimit, [this] { loop_.stop(); });
    mps_->stop([this] { loop_.stop(); });
  }

  void manage_mig() {
    mig_hooks_.emplace(loop_, [this] { return config_.gpulet.mig; });
    MigPorts ports{
        .loop = loop_,
        .hardware = mig_hardware_,
        .reporter = *reporter_,
        .pods = [this](auto done) { ask_pods(std::move(done)); },
        .layouts = [this](const auto& name, auto gpus) { return mig_layouts(config_, name, gpus); },
        .withdraw =
            [this](auto gpus) {
              facts_.withdrawn = std::move(gpus);
              if (agent_) agent_->set_facts(facts_);
            },
        .read_again =
            [this] {
              if (agent_) agent_->reread();
            },
        .tell_state =
            [this](std::string_view state) {
              if (node_patch_) node_patch_->set_label(kMigStateLabel, std::string(state));
            },
        .hooks = &*mig_hooks_,
        .drains = [this] { return config_.gpulet.mig.drain; },
        .evict = [this](auto pods, auto news) -> std::unique_ptr<cluster::Eviction> {
          if (!access_) return nullptr;
          return cluster::Eviction::start(loop_, *access_, std::move(pods), std::move(news));
        },
    };
    mig_.emplace(std::move(ports), std::random_device{}());
  }

  // What the kubelet sees of us goes first, so that it knows at once; threads in a driver call are left to
  // the exit.
  void withdraw() {
    pages_.reset();
    gpu_node_care_.reset();
    gpu_node_.reset();
    label_care_.reset();
    fault_care_.reset();
    mig_.reset();
    mig_hooks_.reset();
    agent_.reset();
    operator_.reset();
    cdi_.reset();
    mps_.reset();
    pod_resources_.reset();
    host_.reset();
    driver_.reset();
  }

  NodeMetrics::Counts counts() const {
    NodeMetrics::Counts counts;
    if (host_) counts.kubelet = host_->calls();
    if (fault_care_) counts.pods_moved = fault_care_->moving().moved();
    if (rights_care_) counts.rights_missing = rights_care_->missing();
    return counts;
  }

  using Holders = std::map<DeviceId, std::string>;

  void list_pods(std::function<void(Holders)> done) {
    ask_pods([done = std::move(done)](Result<Holders> pods) {
      if (!pods) log::warning("cannot ask the kubelet which Pods hold a device", pods.error());
      done(pods ? std::move(*pods) : Holders());
    });
  }

  // A node whose config its label chooses asks nobody before it has one.
  void ask_holders(std::function<void(Result<std::vector<kubelet::ContainerDevices>>)> done) {
    if (pod_resources_) return pod_resources_->list(std::move(done));
    loop_.post([done = std::move(done)] {
      done(fail(Code::kUnavailable, "the node's configuration is not known yet"));
    });
  }

  void ask_pods(std::function<void(Result<Holders>)> done) {
    ask_holders([done = std::move(done)](const Result<std::vector<kubelet::ContainerDevices>>& containers) {
      if (!containers) return done(fail(containers.error()));
      done(kubelet::pods_by_device(*containers));
    });
  }

  void follow_labels() {
    // What is wrong with the access was said by the reporter, which has the same.
    const auto access = cluster::find_access(sources_.environment);
    label(access ? *access : std::nullopt);
    if (!access || !*access) return on_labels({});
    access_ = **access;
    rights_care_.emplace(loop_, *access_, in_pod()).apply(config_);
    pages_->set_access(*access_);
    node_patch_ = cluster::NodePatch::start(loop_, **access);
    node_watch_ =
        cluster::NodeWatch::start(loop_, **access, {}, [this](const auto& labels) { on_labels(labels); });
    fault_care_ = std::make_unique<FaultCare>(
        FaultCarePorts{.loop = loop_,
                       .access = *access_,
                       .holders = [this](auto done) { ask_holders(std::move(done)); }},
        config_.gpulet.faults, std::random_device{}());
    if (agent_ && agent_->health()) tell_health(agent_->health());
    publish_node();
  }

  // For schedulers, as the config wants it.
  void publish_node() {
    if (!config_.gpulet.publish_node || !access_) {
      gpu_node_care_.reset();
      gpu_node_.reset();
      return;
    }
    if (gpu_node_care_) return gpu_node_care_->changed();
    gpu_node_ = cluster::ObjectApply::start(
        loop_, *access_, {scheduler::kGpuNodeApiVersion, scheduler::kGpuNodeKind, scheduler::kGpuNodesPath});
    gpu_node_care_.emplace(
        GpuNodePorts{.loop = loop_,
                     .holders = [this](auto done) { ask_holders(std::move(done)); },
                     .node = [this](const auto& holders) -> std::optional<scheduler::GpuNode> {
                       const auto snapshot = agent_ ? agent_->state().snapshot : nullptr;
                       if (!snapshot) return std::nullopt;
                       return published_node(*snapshot, agent_->offers(), config_, agent_->health().get(),
                                             holders, pages_->loads().curves(loop_.wall_now()));
                     },
                     .write = [this](std::string spec) { gpu_node_->set(std::move(spec)); }});
  }

  // Also outside a cluster: a file is for NFD's worker, which has one.
  void label(const std::optional<cluster::Access>& access) {
    LabelCarePorts ports{
        .loop = loop_, .access = access, .feature = {}, .print = nullptr, .settled = nullptr};
    if (access) ports.feature.name_space = access->pod_namespace;
    const auto pod = sources_.environment.find("POD_NAME");
    if (pod != sources_.environment.end()) ports.feature.pod = pod->second;
    label_care_.emplace(std::move(ports), config_);
    look_again_soon();
  }

  void tell_health(const health::ViewPtr& view) {
    operator_->on_health(view);
    if (fault_care_) fault_care_->on_health(view);
  }

  void on_labels(const std::map<std::string, std::string>& labels) {
    facts_.labels = labels;
    if (agent_) agent_->set_facts(facts_);
    if (config_folder_) {
      const auto label = labels.find(config_.node_config.label);
      config_folder_->set_label(label == labels.end() ? std::nullopt : std::optional(label->second));
    }
    look_again_soon();
  }

  // The node's own config out of a folder. Nothing is offered before it is known which.
  void follow_config_folder() {
    auto folder = config::ConfigFolder::start(
        loop_, config_.node_config,
        [this](const std::string& path, const std::optional<std::string>& problem) {
          if (problem) reporter_->event(Reporter::Severity::kWarning, "NodeConfig", *problem);
          sources_.flags["config-file"] = {path};
          reload();
        });
    if (!folder) {
      reporter_->event(Reporter::Severity::kWarning, "NodeConfig", folder.error().text());
      return build();
    }
    config_folder_ = std::move(*folder);
    label_patience_ = loop_.after(kLabelPatience, [this] {
      if (!agent_) config_folder_->set_label(std::nullopt);
    });
  }

  void watch_config() {
    if (config_folder_ || config_.config_file.empty()) return;
    auto watch = FileWatch::start(loop_, config_.config_file, [this] { reload(); });
    if (!watch)
      return log::warning("changes of the config file are not seen; SIGHUP reloads it", watch.error());
    config_watch_ = std::move(*watch);
  }

  void reload() {
    auto sources = sources_;
    if (const auto status = config::read_config_file(sources); !status) return config_failed(status.error());
    if (agent_ && last_content_ && *last_content_ == sources.file_content && !agent_->state().config_error)
      return;
    auto loaded = config::load(sources);
    last_content_ = sources.file_content;
    if (!loaded) return config_failed(loaded.error());
    for (const auto& warning : loaded->warnings) log::warning(warning);
    pages_->on_config(config::print_yaml(*loaded));
    config_ = std::move(loaded->config);
    configure_log(config_.gpulet);
    if (fault_care_) fault_care_->apply(config_.gpulet.faults);
    if (label_care_) label_care_->apply(config_);
    if (rights_care_) rights_care_->apply(config_);
    if (!agent_) {
      build();
    } else if (*places_ == Places(config_)) {
      health_file_.move_to(health_state_of(config_));
      operator_->apply(config_.gpulet.state_dir, config_.gpulet.health_file);
      agent_->apply(config_);
      follow_kernel_log();
    } else {
      pages_->detach();
      gpu_node_care_.reset();  // what it has asked the kubelet's client for goes with that
      agent_.reset();
      host_.reset();
      driver_.reset();
      build();
      reporter_->event(Reporter::Severity::kNormal, "ConfigReloaded", "the new configuration is in force");
    }
    pages_->apply(config_);
    publish_node();
  }

  void config_failed(const Error& error) {
    if (!agent_) build();  // by flags and environment alone
    agent_->config_failed(error);
  }

  void look_again_soon() {
    if (look_posted_) return;
    look_posted_ = true;
    loop_.post([this] {
      look_posted_ = false;
      pages_->publish();
      if (gpu_node_care_) gpu_node_care_->changed();
      if (!agent_ || !mig_) return;
      const auto state = agent_->state();
      const auto& snapshot = state.snapshot;
      if (label_care_) label_care_->update(snapshot, state.driver_answers, facts_.labels);
      if (snapshot) mig_->update(mig_wishes(*snapshot, config_, facts_.labels), snapshot);
    });
  }

  config::Sources sources_;
  const std::string config_text_;  // at the start
  config::Config config_;
  const std::string version_;
  EpollLoop loop_;
  Status ended_;
  std::shared_ptr<kubelet::Rpc> rpc_;
  std::optional<Places> places_;
  std::unique_ptr<NvmlDriver> driver_;
  std::unique_ptr<kubelet::PluginHost> host_;
  std::unique_ptr<kubelet::PodResources> pod_resources_;
  std::unique_ptr<NodeReporter> reporter_;
  HealthFile health_file_{loop_, {}};
  std::optional<std::string> followed_log_;
  std::unique_ptr<KernelLog> kernel_log_;
  std::optional<OperatorCare> operator_;
  std::optional<Agent> agent_;
  std::optional<MpsCare> mps_;
  std::optional<CdiCare> cdi_;
  partition::NodeFacts facts_;
  NvmlMig mig_hardware_{loop_, [this] { return driver_.get(); }};
  std::optional<ConfiguredHooks> mig_hooks_;
  std::optional<MigManager> mig_;
  std::optional<cluster::Access> access_;
  std::unique_ptr<cluster::NodeWatch> node_watch_;
  std::unique_ptr<cluster::NodePatch> node_patch_;
  std::unique_ptr<FaultCare> fault_care_;
  std::optional<RightsCare> rights_care_;
  std::unique_ptr<cluster::ObjectApply> gpu_node_;
  std::optional<GpuNodeCare> gpu_node_care_;
  std::optional<LabelCare> label_care_;
  std::unique_ptr<config::ConfigFolder> config_folder_;
  Subscription label_patience_;
  std::unique_ptr<FileWatch> config_watch_;
  std::optional<std::string> last_content_;
  std::optional<NodePages> pages_;
  std::unique_ptr<cluster::NodeLeaving> leaving_;
  Subscription end_limit_;
  bool look_posted_ = false;
};

}  // namespace

Status run_node(config::Sources sources, config::Loaded loaded, const std::string& version) {
  // Never destroyed but for what withdraw() names: a thread may still sit in a driver call that never
  // returns.
  auto* node = new Node(std::move(sources), std::move(loaded), version);
  return node->run();
}

}  // namespace gpulet::agent
