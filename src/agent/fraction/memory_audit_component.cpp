#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "agent/dra/claim_limits.h"
#include "agent/driver/nvml_adapters.h"
#include "agent/fraction/compute_limits.h"
#include "agent/fraction/container_processes.h"
#include "agent/fraction/driver_limits.h"
#include "agent/fraction/memory_auditor.h"
#include "agent/node/components.h"
#include "agent/node/devices.h"
#include "agent/observe/limit_status.h"
#include "dra/claim_memory.h"
#include "dra/device_pool.h"
#include "dra/limit_demand.h"
#include "k8s/event_recorder.h"
#include "partition/limit_means.h"

namespace gpulet::agent {
namespace {

class MemoryAuditComponent final : public Component {
 public:
  MemoryAuditComponent(Node& node, MpsController& mps)
      : node_(node), mps_(mps), compute_(make_compute_ports()), limits_(node, make_limit_ports()) {}

  void apply_config() override { follow_config(); }
  // Requests in progress end with the clients of the driver and the kubelet. Containers that wait for a limit
  // are refused.
  void detach_devices() override {
    is_attached_ = false;
    limits_.detach();
    auditor_.reset();
  }
  void attach_devices() override {
    is_attached_ = true;
    follow_config();
  }
  void on_state_changed() override {
    read_node_grade();
    const auto snapshot = present_snapshot();
    if (auditor_ && std::exchange(snapshot_, snapshot) != snapshot) auditor_->use_snapshot(snapshot);
    const auto* agent = node_.devices->agent();
    limits_.follow_driver(agent != nullptr && snapshot && agent->status().driver_answers);
  }
  void on_device_nodes_changed() override { limits_.on_driver_loaded(); }
  void on_allocated() override {
    if (auditor_) auditor_->on_allocated();
  }
  void add_counts(NodeCounts& counts) const override {
    if (!limits_.problem().empty()) counts.problems.push_back("memory limits: " + limits_.problem());
    if (auditor_) counts.memory_audit = auditor_->stats();
    add_grades(counts);
  }

 private:
  void follow_config() {
    read_node_grade();
    follow_audit();
    if (is_attached_) limits_.follow_config();
  }

  // Without the settings there is no auditor, nor a client of the API server for it.
  void follow_audit() {
    const auto action = node_.config.gpulet.fraction.on_exceeded;
    const bool has_limits = node_.config.gpulet.fraction.driver_limits;
    if (!is_attached_ || !node_.client_config || (action == config::ExceededAction::kNone && !has_limits))
      return auditor_.reset();
    if (!auditor_) {
      connect();
      auditor_.emplace(make_ports(), std::random_device{}());
      snapshot_ = present_snapshot();
      auditor_->use_snapshot(snapshot_);
    }
    auditor_->apply_action(action, has_limits);
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
                   .holders = [this](auto done) { node_.devices->list_for_start(std::move(done)); },
                   .reader = *reader_,
                   .on_invalid_request = {},
                   .changed = {},
                   .refreshed = [this](const Status& result) { limits_.on_pods_read(result); },
                   .shows_allocations = [this] { return node_.devices->shows_allocations(); },
                   .claimed_memory =
                       [this](const std::string& name_space, std::span<const k8s::ContainerClaim> claims) {
                         return find_claimed_memory(node_, name_space, claims);
                       },
                   .check_named_claims =
                       [this](const k8s::PodMetadata& pod, const std::string& container,
                              const std::vector<fraction::FractionRequest>& requests) {
                         return check_named_claims(pod, container, requests);
                       }},
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
        .is_shared_by_mps = [this](const LedgerEntry& entry,
                                   const DeviceUuid& gpu) { return is_shared_by_mps(entry.resource, gpu); },
        .limit_means = [this](const LedgerEntry& entry,
                              const DeviceUuid& gpu) { return limit_means(entry, gpu); },
        .end_clients =
            [this](const DeviceUuid& gpu, const std::vector<unsigned>& pids, std::function<void()> done) {
              auto* daemon = mps_.find_daemon(gpu);
              if (daemon != nullptr) daemon->end_clients(pids, std::move(done));
              return daemon != nullptr;
            },
        .watch_memory =
            [this](std::vector<GpuMemoryQuestion> known, unsigned intervals, auto ended) {
              auto* driver = node_.devices->driver();
              return driver == nullptr
                         ? Subscription()
                         : watch_gpu_memory(*driver, std::move(known), intervals, std::move(ended));
            },
    };
  }

  ComputePorts make_compute_ports() {
    return {.loop = node_.loop,
            .specs = [this] { return mps_.resource_specs(); },
            .set_namespace =
                [this](const NamespaceSetting& setting, ComputePorts::Done done) {
                  if (auto* daemon = mps_.find_daemon(setting.gpu))
                    return daemon->set_namespace(setting.name, setting.limits, std::move(done));
                  node_.loop.post([done = std::move(done)] {
                    done(fail(Code::kUnavailable, "its MPS control daemon does not run"));
                  });
                }};
  }

  DriverLimitPorts make_limit_ports() {
    return {.ledger = [this] { return auditor_ ? auditor_->ledger() : nullptr; },
            .notify =
                [this](const EvictionEvent& event) {
                  if (events_) send_eviction_event(*events_, "memory limit", event);
                },
            .hold_compute =
                [this](const ContainerLimits& container, Duration within, ComputePorts::Done done) {
                  compute_.hold_compute(container, within, std::move(done));
                }};
  }

  void read_memory(std::vector<GpuMemoryQuestion> questions,
                   std::function<void(Result<GpuMemoryReadings>)> done) {
    if (auto* driver = node_.devices->driver())
      return read_gpu_memory(*driver, std::move(questions), std::move(done));
    node_.loop.post([done = std::move(done)] { done(fail(Code::kUnavailable, "there is no driver")); });
  }

  // Those of containers come after the audit's.
  void add_grades(NodeCounts& counts) const {
    counts.memory_limit = node_limit_;
    if (!counts.memory_audit || (!node_limit_ && counts.memory_audit->containers.empty())) return;
    if (!node_limit_) counts.memory_limit.emplace();
    counts.memory_limit->containers = counts.memory_audit->containers;
    for (auto& container : counts.memory_limit->containers) container.used.reset();
  }

  // Once for each change of what is offered.
  void read_node_grade() {
    node_limit_.reset();
    const auto snapshot = present_snapshot();
    if (!snapshot) return;
    const auto offers = node_.devices->agent()->offers();
    std::vector<const partition::Resource*> resources;
    for (const auto& offer : offers) resources.push_back(&offer->resource);
    const auto of_claims = shared_by_claims(node_.claim_pool.get(), *snapshot);
    resources.push_back(&of_claims);
    const auto means = partition::common_limit_means(resources, *snapshot, node_.config);
    if (means == fraction::LimitMeans{}) return;
    const auto grade = fraction::grade_of_node(means);
    node_limit_ = MemoryLimitStatus{.grade = std::string(fraction::limit_grade_name(grade.grade))};
    for (const auto& reason : grade.reasons) node_limit_->reasons.push_back(reason.reason);
    node_limit_->no_compute_limit = node_.devices->why_no_compute_limit();
  }

  // Nothing, which is the grade none, while the GPU is not offered as that resource. Of the driver only what
  // was read back counts.
  fraction::LimitMeans limit_means(const LedgerEntry& entry, const DeviceUuid& gpu) const {
    auto means = offered_limit_means(entry.resource, gpu);
    const bool is_expected =
        std::exchange(means.has_driver_limit, limits_.is_in_force(entry.container_id, gpu));
    if (is_expected && !means.has_driver_limit)
      means.no_driver_limit = "the driver's limit was not set when the container started";
    return means;
  }

  fraction::LimitMeans offered_limit_means(const ResourceName& resource, const DeviceUuid& gpu) const {
    const auto snapshot = present_snapshot();
    if (!snapshot) return {};
    if (resource == ResourceName(std::string(dra::kDriverName)))
      return claim_limit_means(node_, *snapshot, gpu);
    for (const auto& offer : node_.devices->agent()->offers()) {
      if (offer->resource.name != resource) continue;
      for (const auto& device : offer->resource.devices) {
        if (device.gpu < snapshot->gpus.size() && snapshot->gpus[device.gpu].uuid == gpu && !device.mig)
          return partition::limit_means_of(offer->resource, device, *snapshot, node_.config);
      }
    }
    return {};
  }

  // Without claims of this agent, the container has none with a limit.
  Status check_named_claims(const k8s::PodMetadata& pod, const std::string& container,
                            const std::vector<fraction::FractionRequest>& requests) const {
    if (node_.claim_records == nullptr) return {};
    const auto snapshot = present_snapshot();
    if (!snapshot) return fail(Code::kUnavailable, "the GPUs of this node are not known");
    return dra::check_named_claims(*node_.claim_records, pod, container, requests,
                                   demand_node(*snapshot, node_.config));
  }

  bool is_shared_by_mps(const ResourceName& resource, const DeviceUuid& gpu) const {
    if (resource == ResourceName(std::string(dra::kDriverName)))
      return node_.claim_records == nullptr || dra::find_claim_daemon(*node_.claim_records, gpu) != nullptr;
    const auto* agent = node_.devices->agent();
    if (agent == nullptr) return true;
    return std::ranges::any_of(agent->offers(), [&](const auto& offer) {
      return offer->resource.name == resource && !offer->daemons.empty();
    });
  }

  Node& node_;
  MpsController& mps_;
  bool is_attached_ = false;  // to the driver and the kubelet
  std::unique_ptr<k8s::ObjectReader> reader_;
  std::unique_ptr<k8s::EventRecorder> events_;
  inventory::SnapshotPtr snapshot_;  // as passed on
  std::optional<MemoryAuditor> auditor_;
  std::optional<MemoryLimitStatus> node_limit_;  // without containers; nullopt: the node wants no limits
  ComputeLimits compute_;
  DriverLimits limits_;  // asks the auditor's ledger
};

}  // namespace

std::unique_ptr<Component> make_memory_audit_component(Node& node, MpsController& mps) {
  return std::make_unique<MemoryAuditComponent>(node, mps);
}

}  // namespace gpulet::agent
