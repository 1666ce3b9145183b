// The components of a node's agent (node/component.h). Those that work on the node itself are in
// components_local.cpp: the config, MPS daemons, CDI specs, the operator's commands, MIG layouts, and the
// pages that the node serves. Those that publish the node to the cluster and follow its object there are in
// components_cluster.cpp.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "agent/node/component.h"
#include "agent/node/node.h"
#include "agent/observe/node_pages.h"
#include "agent/remediation/remediation_controller.h"
#include "agent/resources/cdi_controller.h"
#include "agent/resources/mps_controller.h"
#include "base/file_watch.h"
#include "config/config_directory.h"

namespace gpulet::agent {

class MpsComponent final : public Component {
 public:
  explicit MpsComponent(Node& node);
  MpsController& controller() { return controller_; }
  void add_counts(NodeCounts& counts) const override;
  void stop(std::function<void()> done) override;

 private:
  Node& node_;
  MpsController controller_;
};

class CdiComponent final : public Component {
 public:
  explicit CdiComponent(Node& node);
  CdiController& controller() { return controller_; }
  void add_counts(NodeCounts& counts) const override;

 private:
  CdiController controller_;
};

class PagesComponent final : public Component {
 public:
  explicit PagesComponent(Node& node);
  NodePages& pages() { return pages_; }
  void start() override;
  void apply_config() override;
  void detach_devices() override;
  void attach_devices() override;
  void on_state_changed() override;
  void on_allocated() override;
  void on_health_changed(const health::HealthViewPtr& view,
                         const std::vector<health::StatusChange>& changes) override;

 private:
  std::string state_dir() const;  // empty: nothing is kept

  Node& node_;
  NodePages pages_;
};

// Publishes health on the Node and to Pods, and evicts Pods from broken GPUs.
class RemediationComponent final : public Component {
 public:
  explicit RemediationComponent(Node& node) : node_(node) {}
  // Null outside a cluster, and before start().
  PodEvictor* evictor() { return controller_ ? &controller_->evictor() : nullptr; }
  void start() override;
  void apply_config() override;
  void on_health_changed(const health::HealthViewPtr& view,
                         const std::vector<health::StatusChange>& changes) override;
  void add_counts(NodeCounts& counts) const override;

 private:
  Node& node_;
  std::optional<RemediationController> controller_;
};

// `gpulet health` and `gpulet cordon` on the node.
std::unique_ptr<Component> make_operator_component(Node& node);
// `gpulet driver release`, and the same by node labels (agent/driver/driver_release.h).
std::unique_ptr<Component> make_release_component(Node& node);
std::unique_ptr<Component> make_mig_component(Node& node);
// Resets faulty GPUs that are empty, and requests reboots (agent/remediation/gpu_repairer.h).
std::unique_ptr<Component> make_gpu_repair_component(Node& node);
// Checks idle GPUs by CUDA before they are offered (agent/preflight/preflight_controller.h).
std::unique_ptr<Component> make_preflight_component(Node& node);
// Returns freed memory to the kernel after changes.
std::unique_ptr<Component> make_memory_component(Node& node);
// Reports rights at the driver that the agent lacks (agent/driver/driver_rights.h).
std::unique_ptr<Component> make_driver_rights_component(Node& node);
// Follows the driver's device nodes: creates missing ones, and has specs and offers follow them.
std::unique_ptr<Component> make_device_node_component(Node& node, CdiController& cdi);

// Components that publish the node to the cluster and follow its object there. Outside a cluster
// only the label component has something to do.

// Reports permissions that the agent lacks.
std::unique_ptr<Component> make_rbac_component(Node& node);
// Ends the agent of a host service when its kubeconfig comes or changes (node/kubeconfig_watcher.h).
std::unique_ptr<Component> make_kubeconfig_component(Node& node);
// Removes the startup taint of a new node (agent/publish/startup_taint.h).
std::unique_ptr<Component> make_startup_taint_component(Node& node);
// Deletes Pods that the kubelet rejected before the agent was there (agent/remediation/rejected_pods.h).
std::unique_ptr<Component> make_rejected_pods_component(Node& node);
// Tells Pods whose containers may no longer open their GPUs (agent/remediation/cut_off_pods.h), and has the
// fault policy evict them.
std::unique_ptr<Component> make_cut_off_pods_component(Node& node, RemediationComponent& remediation);
// Limits the power and clocks of GPUs (agent/power/power_controller.h).
std::unique_ptr<Component> make_power_component(Node& node);
// Follows the Node's labels (Node::labels).
std::unique_ptr<Component> make_node_label_component(Node& node);
// Publishes the node's labels, also into a file outside a cluster.
std::unique_ptr<Component> make_label_component(Node& node);
// Gives Pods only the devices that their annotations accept (agent/plugin/pod_choices.h).
std::unique_ptr<Component> make_pod_choice_component(Node& node);
// Publishes the GpuNode for schedulers, with the load forecasts of `pages`.
std::unique_ptr<Component> make_gpu_node_component(Node& node, NodePages& pages);
// Offers the GPUs by claims of Dynamic Resource Allocation (gpulet.dra).
std::unique_ptr<Component> make_claim_component(Node& node, MpsController& mps);
// Holds the memory limits of containers on shared GPUs (gpulet.fraction).
std::unique_ptr<Component> make_memory_audit_component(Node& node, MpsController& mps);
// Asks Pods to leave hot GPUs, by the samples of `pages`. Both must be started before it.
std::unique_ptr<Component> make_rebalance_component(Node& node, RemediationComponent& remediation,
                                                    NodePages& pages);

// The config in force: follows the config file, or a directory of them from which the node's label chooses,
// and SIGHUP. A config that cannot be loaded leaves the one before it in force.

// Loop's thread only.
class ConfigReloader final : public Component {
 public:
  explicit ConfigReloader(Node& node);

  void start() override;
  void on_node_labels() override;
  // Loads the sources again, and applies them where they differ. After an error kIo it tries again by itself:
  // no change of the file ends that.
  void reload_config();

 private:
  void watch_directory();
  void watch_file();

  Node& node_;
  std::optional<std::string> last_content_;
  std::unique_ptr<config::ConfigDirectoryWatcher> directory_;
  Subscription label_timeout_;
  std::unique_ptr<FileWatcher> file_watch_;
  std::string read_error_;  // as reported
  Backoff read_backoff_;
  Subscription read_retry_;
};

}  // namespace gpulet::agent
