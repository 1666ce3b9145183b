#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "agent/driver/nvml_adapters.h"
#include "agent/fraction/container_processes.h"
#include "agent/fraction/memory_auditor.h"
#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "k8s/event_recorder.h"

namespace gpulet::agent {
namespace {

class MemoryAuditComponent final : public Component {
 public:
  explicit MemoryAuditComponent(Node& node) : node_(node) {}

  void apply_config() override { follow_config(); }
  // Requests in progress end with the clients of the driver and the kubelet.
  void detach_devices() override {
    is_attached_ = false;
    auditor_.reset();
  }
  void attach_devices() override {
    is_attached_ = true;
    follow_config();
  }
  void on_state_changed() override {
    const auto snapshot = present_snapshot();
    if (auditor_ && std::exchange(snapshot_, snapshot) != snapshot) auditor_->use_snapshot(snapshot);
  }
  void on_allocated() override {
    if (auditor_) auditor_->on_allocated();
  }
  void add_counts(NodeCounts& counts) const override {
    if (auditor_) counts.memory_audit = auditor_->stats();
  }

 private:
  // Without the setting there is no auditor, nor a client of the API server for it.
  void follow_config() {
    const auto action = node_.config.gpulet.fraction.on_exceeded;
    if (!is_attached_ || !node_.client_config || action == config::ExceededAction::kNone)
      return auditor_.reset();
    if (!auditor_) {
      connect();
      auditor_.emplace(make_ports(), std::random_device{}());
      snapshot_ = present_snapshot();
      auditor_->use_snapshot(snapshot_);
    }
    auditor_->apply_action(action);
  }

  inventory::SnapshotPtr present_snapshot() const {
    const auto* agent = node_.devices->agent();
    return agent != nullptr ? agent->status().snapshot : nullptr;
  }

  void connect() {
    if (reader_) return;
    reader_ = k8s::ObjectReader::start_reader(node_.loop, *node_.client_config);
    events_ = k8s::EventRecorder::start_recorder(node_.loop, *node_.client_config);
  }

  MemoryAuditorPorts make_ports() {
    return {
        .loop = node_.loop,
        .ledger = {.loop = node_.loop,
                   .holders = [this](auto done) { node_.devices->list_containers(std::move(done)); },
                   .reader = *reader_,
                   .on_invalid_request = {},
                   .changed = {}},
        .read_memory = [this](std::vector<GpuMemoryQuestion> questions,
                              auto done) { read_memory(std::move(questions), std::move(done)); },
        .cgroups = [](unsigned pid) { return read_pod_cgroups(pid); },
        .kill = [](unsigned pid,
                   const metrics::PodCgroup& expected) { return kill_container_process(pid, expected); },
        .evict =
            [this](const PodRef& pod, k8s::Eviction::UpdateCallback on_update) {
              return k8s::Eviction::start_eviction(node_.loop, *node_.client_config, std::vector{pod},
                                                   std::move(on_update));
            },
        .notify =
            [this](const EvictionEvent& event) { send_eviction_event(*events_, "memory limit", event); },
        .is_shared_by_mps = [this](const ResourceName& resource) { return is_shared_by_mps(resource); },
    };
  }

  void read_memory(std::vector<GpuMemoryQuestion> questions,
                   std::function<void(Result<GpuMemoryReadings>)> done) {
    if (auto* driver = node_.devices->driver())
      return read_gpu_memory(*driver, std::move(questions), std::move(done));
    node_.loop.post([done = std::move(done)] { done(fail(Code::kUnavailable, "there is no driver")); });
  }

  bool is_shared_by_mps(const ResourceName& resource) const {
    const auto* agent = node_.devices->agent();
    if (agent == nullptr) return true;
    return std::ranges::any_of(agent->offers(), [&](const auto& offer) {
      return offer->resource.name == resource && !offer->daemons.empty();
    });
  }

  Node& node_;
  bool is_attached_ = false;  // to the driver and the kubelet
  std::unique_ptr<k8s::ObjectReader> reader_;
  std::unique_ptr<k8s::EventRecorder> events_;
  inventory::SnapshotPtr snapshot_;  // as passed on
  std::optional<MemoryAuditor> auditor_;
};

}  // namespace

std::unique_ptr<Component> make_memory_audit_component(Node& node) {
  return std::make_unique<MemoryAuditComponent>(node);
}

}  // namespace gpulet::agent
