#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/remediation/cut_off_pods.h"
#include "agent/resources/device_nodes.h"
#include "k8s/event_recorder.h"
#include "metrics/attribution.h"

namespace gpulet::agent {
namespace {

// While gpulet.faults asks for Events about Pods that hold a GPU, or for the eviction of these.
class CutOffPodsComponent final : public Component {
 public:
  CutOffPodsComponent(Node& node, RemediationComponent& remediation)
      : node_(node), remediation_(remediation) {}

  void start() override { apply_config(); }
  void apply_config() override {
    const bool wanted = node_.client_config && (node_.config.gpulet.faults.pod_events || may_evict());
    if (wanted == pods_.has_value()) return;
    pods_.reset();
    if (!wanted) {
      if (auto* evictor = remediation_.evictor(); evictor != nullptr) evictor->update_cut_off_pods({});
      return;
    }
    if (!events_) {
      events_ = k8s::EventRecorder::start_recorder(node_.loop, *node_.client_config);
      reader_ = k8s::ObjectReader::start_reader(node_.loop, *node_.client_config);
    }
    pods_.emplace(CutOffPodPorts{
        .loop = node_.loop,
        .holders = [this](auto done) { node_.devices->list_containers(std::move(done)); },
        .reader = *reader_,
        .nodes = [this](const DeviceId& id) { return device_nodes(id); },
        // With hostPID the host's cgroups are seen through its first process.
        .cgroups =
            [] {
              auto found = find_device_cgroups("/proc/1/root");
              return found ? std::move(found) : find_device_cgroups("/");
            },
        .check =
            [this](const auto& cgroups, const auto& directory, auto nodes, auto done) {
              return std::make_shared<AccessCheck>(node_.loop, cgroups, directory, std::move(nodes),
                                                   std::move(done));
            },
        .notify =
            [this](const EvictionEvent& event) {
              if (node_.config.gpulet.faults.pod_events)
                send_eviction_event(*events_, "device access", event);
            },
        .may_evict = [this] { return may_evict(); },
        .cut_off =
            [this](auto pods) {
              if (auto* evictor = remediation_.evictor(); evictor != nullptr)
                evictor->update_cut_off_pods(std::move(pods));
            },
    });
  }
  void add_counts(NodeCounts& counts) const override {
    if (pods_) counts.containers_cut_off = pods_->cut_off_containers();
  }

 private:
  bool may_evict() const {
    const auto& eviction = node_.config.gpulet.faults.eviction;
    return eviction.enabled && eviction.access_lost.kind != health::Grace::Kind::kStay;
  }

  std::vector<std::string> device_nodes(const DeviceId& id) const {
    const auto* agent = node_.devices->agent();
    const auto snapshot = agent != nullptr ? agent->status().snapshot : nullptr;
    const auto share = snapshot ? metrics::resolve_device_id(id, *snapshot) : std::nullopt;
    const auto root = find_device_root(node_.config);
    if (!share || !root) return {};
    const std::string directory = (root->root_path() == "/" ? "" : root->root_path()) + "/dev/nvidia";
    for (const auto& gpu : snapshot->gpus) {
      if (gpu.uuid == share->device ||
          std::ranges::find(gpu.mig_devices, share->device, &inventory::MigDevice::uuid) !=
              gpu.mig_devices.end())
        return {directory + std::to_string(gpu.minor), directory + "ctl"};
    }
    return {};
  }

  Node& node_;
  RemediationComponent& remediation_;
  std::unique_ptr<k8s::EventRecorder> events_;
  std::unique_ptr<k8s::ObjectReader> reader_;
  std::optional<CutOffPods> pods_;
};

}  // namespace

std::unique_ptr<Component> make_cut_off_pods_component(Node& node, RemediationComponent& remediation) {
  return std::make_unique<CutOffPodsComponent>(node, remediation);
}

}  // namespace gpulet::agent
