// The component of the agent that applies MIG layouts: the MIG manager, and what is cut on demand.
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "agent/driver/nvml_adapters.h"
#include "agent/mig/demand_controller.h"
#include "agent/mig/mig_manager.h"
#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "k8s/node_labels.h"
#include "partition/resources.h"

namespace gpulet::agent {
namespace {

class MigComponent final : public Component {
 public:
  explicit MigComponent(Node& node)
      : node_(node),
        hardware_(node.loop, [this] { return node_.devices->driver(); }),
        hooks_(node.loop, [this] { return node_.config.gpulet.mig; }),
        manager_(make_ports(), std::random_device{}()),
        demand_(make_demand_ports()) {
    node_.is_mig_busy = [this] { return manager_.is_busy(); };
    node_.set_mig_demand = [this](const scheduler::MigDemand& demand) { demand_.set_demand(demand); };
  }
  ~MigComponent() override {
    node_.is_mig_busy = nullptr;
    node_.set_mig_demand = nullptr;
  }

  void start() override {
    if (node_.client_config)
      labels_ = k8s::NodeLabelPatcher::start_label_patcher(node_.loop, *node_.client_config);
  }

  void on_state_changed() override {
    const auto* agent = node_.devices->agent();
    const auto snapshot = agent != nullptr ? agent->status().snapshot : nullptr;
    if (agent != nullptr) manager_.set_driver_open(agent->status().driver_answers);
    if (!snapshot) return;
    const auto targets = mig_targets(*snapshot, node_.config, node_.labels);
    demand_.set_targets(targets, node_.config.gpulet.mig.on_demand, snapshot);
    manager_.set_targets(demand_.adjust_targets(targets), snapshot);
  }
  void on_allocated() override { demand_.on_devices_allocated(); }
  void add_counts(NodeCounts& counts) const override {
    if (node_.config.gpulet.mig.on_demand.max_gpus > 0)
      counts.mig_reconfigurations = demand_.reconfigurations();
  }

 private:
  MigPorts make_ports() {
    return {
        .loop = node_.loop,
        .hardware = hardware_,
        .reporter = *node_.reporter,
        .pods = [this](auto done) { node_.devices->list_holders(std::move(done)); },
        .layouts = [this](const auto& name, auto gpus) { return mig_layouts(node_.config, name, gpus); },
        .withdraw =
            [this](auto gpus) {
              node_.devices->set_withdrawn(Devices::WithdrawnFor::kMigChange, std::move(gpus));
            },
        .request_snapshot = [this] { node_.devices->request_reading(); },
        .publish_state =
            [this](std::string_view state) {
              if (labels_) labels_->set_label(kMigStateLabel, std::string(state));
            },
        .hooks = &hooks_,
        .is_drain_enabled = [this] { return node_.config.gpulet.mig.drain; },
        .evict = [this](auto pods, auto on_update) -> std::unique_ptr<k8s::Eviction> {
          if (!node_.client_config) return nullptr;
          return k8s::Eviction::start_eviction(node_.loop, *node_.client_config, std::move(pods),
                                               std::move(on_update));
        },
        .watch_exit = [this](unsigned pid,
                             auto ended) { return watch_process_exit(node_.loop, pid, std::move(ended)); },
        .shows_allocations = [this] { return node_.devices->shows_allocations(); },
        .round_ended = [this](const auto& failed) { demand_.on_round_ended(failed); },
    };
  }

  MigDemandPorts make_demand_ports() {
    return {.loop = node_.loop,
            .hardware = hardware_,
            .pods = [this](auto done) { node_.devices->list_holders(std::move(done)); },
            .layouts = [this](const auto& name, auto gpus) { return mig_layouts(node_.config, name, gpus); },
            .resource_name =
                [this](const std::string& profile) {
                  inventory::MigDevice device;
                  device.profile = profile;
                  return partition::mig_resource_name(device, node_.config, config::MigStrategy::kMixed);
                },
            .is_busy = [this] { return manager_.is_busy(); },
            .changed =
                [this] {
                  node_.mig_offer = demand_.offer();
                  node_.notify_state_changed();
                },
            .shows_allocations = [this] { return node_.devices->shows_allocations(); }};
  }

  Node& node_;
  NvmlMigHardware hardware_;
  ConfiguredMigHooks hooks_;
  std::unique_ptr<k8s::NodeLabelPatcher> labels_;
  MigManager manager_;
  MigDemandController demand_;
};

}  // namespace

std::unique_ptr<Component> make_mig_component(Node& node) { return std::make_unique<MigComponent>(node); }

}  // namespace gpulet::agent
