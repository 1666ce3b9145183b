#include "agent/node/components.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "agent/node/devices.h"
#include "agent/node/kubeconfig_watcher.h"
#include "agent/plugin/pod_choices.h"
#include "agent/publish/gpu_node_access.h"
#include "agent/publish/gpu_node_publisher.h"
#include "agent/publish/label_controller.h"
#include "agent/publish/rbac_check.h"
#include "agent/publish/startup_taint.h"
#include "agent/remediation/pod_rebalancer.h"
#include "agent/remediation/rejected_pods.h"
#include "agent/remediation/remediation_controller.h"
#include "base/log.h"
#include "k8s/object_applier.h"
#include "k8s/watcher.h"

namespace gpulet::agent {
namespace {

class RbacComponent final : public Component {
 public:
  explicit RbacComponent(Node& node) : node_(node) {}

  void start() override {
    if (!node_.client_config) return;
    check_.emplace(node_.loop, *node_.client_config, node_.is_in_pod());
    check_->check_config(node_.config);
  }
  void apply_config() override {
    if (check_) check_->check_config(node_.config);
  }
  void add_counts(NodeCounts& counts) const override {
    if (check_) counts.permissions_missing = check_->missing_permissions();
  }

 private:
  Node& node_;
  std::optional<RbacCheck> check_;
};

// The kubeconfig of a host service may come after it, when the node joins its cluster.
class KubeconfigComponent final : public Component {
 public:
  explicit KubeconfigComponent(Node& node) : node_(node) {}

  void start() override {
    if (node_.is_in_pod()) return;
    watcher_.emplace(node_.loop, node_.sources.environment, node_.client_config.has_value(),
                     [] { ::kill(::getpid(), SIGTERM); });
  }

 private:
  Node& node_;
  std::optional<KubeconfigWatcher> watcher_;
};

class StartupTaintComponent final : public Component {
 public:
  explicit StartupTaintComponent(Node& node) : node_(node) {}

  void start() override { apply_config(); }
  void apply_config() override {
    const auto& key = node_.config.gpulet.startup_taint;
    if (!node_.client_config || std::exchange(key_, key) == key) return;
    taint_.reset();
    if (key.empty()) return;
    taint_.emplace(StartupTaintPorts{.loop = node_.loop,
                                     .access = *node_.client_config,
                                     .read_state = [this] { return read_state(); },
                                     .removed =
                                         [this](const std::string& message) {
                                           node_.reporter->report_event(Reporter::Severity::kNormal,
                                                                        "StartupTaintRemoved", message);
                                         }},
                   key);
  }
  void on_node_labels() override { are_labels_known_ = true; }

 private:
  StartupState read_state() const {
    const auto* agent = node_.devices->agent();
    if (agent == nullptr || node_.is_config_pending || !are_labels_known_) return {};
    const auto status = agent->status();
    const auto view = agent->health_view();
    StartupState state{.config_known = true,
                       .without_gpu = status.without_gpu,
                       .driver_answers = status.driver_answers,
                       .health_known = view != nullptr && !view->release,
                       .mig_changing = node_.is_mig_busy && node_.is_mig_busy()};
    state.all_excluded =
        status.snapshot && !status.snapshot->gpus.empty() &&
        std::ranges::all_of(status.snapshot->gpus, [](const auto& gpu) { return !gpu.excluded.empty(); });
    for (const auto& resource : status.resources) state.healthy[resource.name.str()] = resource.healthy;
    if (node_.offer_switch.wants_claims()) state.claim_devices = node_.published_claim_devices;
    return state;
  }

  Node& node_;
  std::string key_;
  bool are_labels_known_ = false;
  std::optional<StartupTaint> taint_;
};

class RejectedPodsComponent final : public Component {
 public:
  explicit RejectedPodsComponent(Node& node) : node_(node) {}

  void start() override { apply_config(); }
  void apply_config() override {
    const bool wanted = node_.client_config && node_.config.gpulet.faults.delete_rejected_pods;
    if (wanted == deleter_.has_value()) return;
    deleter_.reset();
    if (!wanted) return;
    if (!events_) events_ = k8s::EventRecorder::start_recorder(node_.loop, *node_.client_config);
    deleter_.emplace(RejectedPodPorts{.loop = node_.loop,
                                      .access = *node_.client_config,
                                      .offered = [this] { return offered_resources(); },
                                      .deleted = [this](const RejectedPod& pod) { on_deleted(pod); }});
  }
  void add_counts(NodeCounts& counts) const override {
    if (deleter_) counts.rejected_pods_deleted = deleted_;
  }

 private:
  OfferedResources offered_resources() const {
    OfferedResources offered;
    const auto* agent = node_.devices->agent();
    if (agent == nullptr) return offered;
    for (const auto& resource : agent->status().resources)
      offered[resource.name.str()] = resource.registered && resource.watched && resource.healthy != 0;
    return offered;
  }

  void on_deleted(const RejectedPod& rejected) {
    ++deleted_;
    const auto& pod = rejected.pod;
    const std::string message = "deleted: the kubelet had rejected it with " + rejected.reason +
                                ", and the node's devices can be allocated again";
    log::warning("rejected Pod deleted",
                 {{"pod", pod.name_space + "/" + pod.name}, {"reason", rejected.reason}});
    events_->record_event({.warning = false, .reason = "RejectedPodDeleted", .message = message, .pod = pod});
  }

  Node& node_;
  std::uint64_t deleted_ = 0;
  std::unique_ptr<k8s::EventRecorder> events_;
  std::optional<RejectedPodDeleter> deleter_;
};

class NodeLabelComponent final : public Component {
 public:
  explicit NodeLabelComponent(Node& node) : node_(node) {}

  void start() override {
    if (!node_.client_config) return set_labels({});
    watcher_ = k8s::NodeLabelWatcher::watch_node_labels(node_.loop, *node_.client_config, {},
                                                        [this](const auto& labels) { set_labels(labels); });
  }

 private:
  void set_labels(const k8s::Labels& labels) {
    node_.labels = labels;
    node_.components.for_each_reversed([](Component& component) { component.on_node_labels(); });
    node_.notify_state_changed();
  }

  Node& node_;
  std::unique_ptr<k8s::NodeLabelWatcher> watcher_;
};

class LabelComponent final : public Component {
 public:
  explicit LabelComponent(Node& node) : node_(node) {}

  void start() override {
    LabelControllerPorts ports{.loop = node_.loop,
                               .access = node_.client_config,
                               .feature = {},
                               .print = nullptr,
                               .settled = nullptr};
    if (ports.access) ports.feature.name_space = ports.access->pod_namespace;
    const auto pod = node_.sources.environment.find("POD_NAME");
    if (pod != node_.sources.environment.end()) ports.feature.pod = pod->second;
    controller_.emplace(std::move(ports), node_.config);
    node_.notify_state_changed();
  }
  void apply_config() override { controller_->apply_label_config(node_.config); }
  void on_state_changed() override {
    const auto* agent = node_.devices->agent();
    if (agent == nullptr) return;
    const auto status = agent->status();
    controller_->on_node_changed(status.snapshot, status.driver_answers, node_.labels);
  }

 private:
  Node& node_;
  std::optional<LabelController> controller_;
};

// build_gpu_node() of what the agent knows now; nullopt before it knows the GPUs.
std::optional<scheduler::GpuNode> build_present_node(
    const Node& node, const std::vector<ContainerDevices>& holders,
    const std::map<DeviceUuid, std::string>& curves,
    const std::vector<scheduler::ControllerLoad>& controllers) {
  const auto* agent = node.devices->agent();
  const auto snapshot = agent != nullptr ? agent->status().snapshot : nullptr;
  if (!snapshot) return std::nullopt;
  const auto offers = agent->offers();
  const auto view = agent->health_view();
  const auto loads = node.loads->newest_loads();
  return build_gpu_node({.snapshot = *snapshot,
                         .offers = offers,
                         .claim_pool = node.claim_pool.get(),
                         .config = node.config,
                         .view = view.get(),
                         .holders = holders,
                         .curves = curves,
                         .loads = *loads,
                         .controllers = controllers,
                         .mig_offer = node.mig_offer,
                         .no_compute_limit = node.devices->why_no_compute_limit()});
}

class PodChoiceComponent final : public Component {
 public:
  explicit PodChoiceComponent(Node& node) : node_(node) {}
  ~PodChoiceComponent() override {
    if (choices_) node_.devices->set_demand_source(nullptr);
  }

  void start() override {
    is_started_ = true;
    apply_config();
  }
  void apply_config() override {
    const bool wanted = is_started_ && node_.client_config && node_.config.gpulet.pod_choices;
    if (wanted == choices_.has_value()) return;
    if (!wanted) {
      node_.devices->set_demand_source(nullptr);
      return choices_.reset();
    }
    choices_.emplace(PodChoicePorts{.loop = node_.loop,
                                    .access = *node_.client_config,
                                    .node = [this] { return build_present_node(node_, {}, {}, {}); },
                                    .offers =
                                        [this] {
                                          const auto* agent = node_.devices->agent();
                                          return agent != nullptr ? agent->offers()
                                                                  : std::vector<device_plugin::OfferPtr>();
                                        }});
    node_.devices->set_demand_source([this](auto done) { choices_->list_demands(std::move(done)); });
  }

 private:
  Node& node_;
  bool is_started_ = false;
  std::optional<PodChoices> choices_;
};

// How soon a node with gpulet.mig.onDemand learns of a demand: two requests that store nothing each time.
constexpr Duration kMigDemandReadInterval = std::chrono::seconds(15);

class GpuNodeComponent final : public Component {
 public:
  GpuNodeComponent(Node& node, NodePages& pages) : node_(node), pages_(pages) {}

  void start() override { follow_config(); }
  void apply_config() override { on_state_changed(); }
  // Its pending request ends with the kubelet's client.
  void detach_devices() override { publisher_.reset(); }
  void on_state_changed() override {
    follow_config();
    if (publisher_) publisher_->on_node_changed();
  }
  void on_allocated() override {
    if (publisher_) publisher_->on_allocated();
  }

 private:
  void follow_config() {
    const auto wanted = node_.config.gpulet.publish_gpu_node;
    // A new demand of the extender arrives with a write.
    const bool reads_demand = node_.config.gpulet.mig.on_demand.max_gpus > 0;
    if (std::exchange(reads_demand_, reads_demand) != reads_demand) {
      publisher_.reset();
      applier_.reset();
    }
    if (wanted || !node_.client_config) {
      access_.reset();
    } else if (!access_) {
      access_.emplace(
          node_.loop, *node_.client_config,
          GpuNodeAccessPorts{
              .is_failing = [this] { return applier_ && !applier_->applier_status().error.empty(); },
              .changed = [this] { follow_config(); }});
    }
    if (!node_.client_config || !wanted.value_or(access_ && access_->can_publish())) {
      publisher_.reset();
      applier_.reset();
      return;
    }
    if (publisher_) return;
    k8s::ApplyTiming timing;
    if (reads_demand_) timing.refresh = kMigDemandReadInterval;
    applier_ = k8s::ObjectApplier::start_applier(
        node_.loop, *node_.client_config,
        {scheduler::kGpuNodeApiVersion, scheduler::kGpuNodeKind, scheduler::kGpuNodesPath}, timing,
        [this](const std::string& object) { on_object(object); });
    publisher_.emplace(
        GpuNodePorts{.loop = node_.loop,
                     .holders = [this](auto done) { node_.devices->list_containers(std::move(done)); },
                     .node = [this](const auto& holders) { return build_node(holders); },
                     .write = [this](std::string spec) { applier_->set_spec(std::move(spec)); }});
  }

  // What the previous agent of this node remembered, and what other nodes know of Pods that came here.
  void on_object(const std::string& object) {
    if (const auto read = scheduler::decode_gpu_node(object)) {
      auto known = read->known_elsewhere;
      if (!is_restored_)
        known.insert(known.end(), read->node.controllers.begin(), read->node.controllers.end());
      pages_.add_controllers(known);
      if (node_.set_mig_demand) node_.set_mig_demand(read->mig_demand);
    }
    if (!std::exchange(is_restored_, true) && publisher_) publisher_->on_node_changed();
  }

  std::optional<scheduler::GpuNode> build_node(const std::vector<ContainerDevices>& holders) const {
    if (!is_restored_) return std::nullopt;
    return build_present_node(node_, holders, pages_.load_forecasts().encoded_curves(node_.loop.wall_now()),
                              pages_.load_forecasts().controllers().known_loads());
  }

  Node& node_;
  NodePages& pages_;
  bool is_restored_ = false;  // what the previous agent had remembered was read
  bool reads_demand_ = false;
  std::unique_ptr<k8s::ObjectApplier> applier_;
  std::optional<GpuNodePublisher> publisher_;
  std::optional<GpuNodeAccess> access_;  // where the config does not say whether to publish
};

class RebalanceComponent final : public Component {
 public:
  RebalanceComponent(Node& node, RemediationComponent& remediation, NodePages& pages)
      : node_(node), remediation_(remediation), pages_(pages) {}
  ~RebalanceComponent() override { pages_.set_sampled_callback(nullptr); }

  void start() override {
    PodEvictor* const evictor = remediation_.evictor();
    if (evictor == nullptr) return;
    reader_ = k8s::ObjectReader::start_reader(node_.loop, *node_.client_config);
    events_ = k8s::EventRecorder::start_recorder(node_.loop, *node_.client_config);
    rebalancer_.emplace(
        PodRebalancerPorts{.loop = node_.loop,
                           .reader = *reader_,
                           .evictor = *evictor,
                           .gpus = [this](auto done) { list_gpus(std::move(done)); },
                           .evict =
                               [this](const PodRef& pod, k8s::Eviction::UpdateCallback on_update) {
                                 return k8s::Eviction::start_eviction(node_.loop, *node_.client_config,
                                                                      std::vector{pod}, std::move(on_update));
                               },
                           .notify =
                               [this](const EvictionEvent& event) {
                                 send_eviction_event(*events_, "Pod on a hot GPU", event);
                               }});
    apply_config();
    pages_.set_sampled_callback([this] {
      if (rebalancer_->needs_samples()) rebalancer_->on_sampled(uses());
    });
  }
  void apply_config() override {
    if (rebalancer_) rebalancer_->apply_policy(node_.config.gpulet.rebalance);
  }
  void add_counts(NodeCounts& counts) const override {
    if (rebalancer_) counts.rebalanced = rebalancer_->counts();
  }

 private:
  std::map<DeviceUuid, GpuLoadForecaster::GpuUse> uses() const {
    return pages_.load_forecasts().gpu_uses(node_.loop.wall_now(), node_.config.gpulet.rebalance.horizon);
  }

  void list_gpus(std::function<void(Result<std::vector<scheduler::RebalanceGpu>>)> done) {
    node_.devices->list_containers([this, alive = lifetime_.watch(), done = std::move(done)](
                                       const Result<std::vector<ContainerDevices>>& holders) {
      if (!alive) return;
      if (!holders) return done(fail(holders.error()));
      const auto present = build_present_node(node_, *holders, {}, {});
      if (!present) return done(fail(Code::kUnavailable, "the GPUs are not known"));
      done(build_rebalance_gpus(*present, uses()));
    });
  }

  Node& node_;
  RemediationComponent& remediation_;
  NodePages& pages_;
  std::unique_ptr<k8s::ObjectReader> reader_;
  std::unique_ptr<k8s::EventRecorder> events_;
  std::optional<PodRebalancer> rebalancer_;
  Lifetime lifetime_;
};

}  // namespace

void RemediationComponent::start() {
  if (!node_.client_config) return;
  controller_.emplace(
      RemediationPorts{.loop = node_.loop,
                       .access = *node_.client_config,
                       .holders = [this](auto done) { node_.devices->list_containers(std::move(done)); }},
      node_.config.gpulet.faults, std::random_device{}());
}

void RemediationComponent::apply_config() {
  if (controller_) controller_->apply_settings(node_.config.gpulet.faults);
}

void RemediationComponent::on_health_changed(const health::HealthViewPtr& view,
                                             const std::vector<health::StatusChange>&) {
  if (controller_) controller_->on_health_view(view);
}

void RemediationComponent::add_counts(NodeCounts& counts) const {
  if (controller_) counts.pods_evicted = controller_->evictor().evicted();
}

std::unique_ptr<Component> make_rbac_component(Node& node) { return std::make_unique<RbacComponent>(node); }

std::unique_ptr<Component> make_kubeconfig_component(Node& node) {
  return std::make_unique<KubeconfigComponent>(node);
}

std::unique_ptr<Component> make_rejected_pods_component(Node& node) {
  return std::make_unique<RejectedPodsComponent>(node);
}

std::unique_ptr<Component> make_pod_choice_component(Node& node) {
  return std::make_unique<PodChoiceComponent>(node);
}

std::unique_ptr<Component> make_startup_taint_component(Node& node) {
  return std::make_unique<StartupTaintComponent>(node);
}

std::unique_ptr<Component> make_node_label_component(Node& node) {
  return std::make_unique<NodeLabelComponent>(node);
}

std::unique_ptr<Component> make_label_component(Node& node) { return std::make_unique<LabelComponent>(node); }

std::unique_ptr<Component> make_gpu_node_component(Node& node, NodePages& pages) {
  return std::make_unique<GpuNodeComponent>(node, pages);
}

std::unique_ptr<Component> make_rebalance_component(Node& node, RemediationComponent& remediation,
                                                    NodePages& pages) {
  return std::make_unique<RebalanceComponent>(node, remediation, pages);
}

}  // namespace gpulet::agent
