#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "agent/driver/nvml_adapters.h"
#include "agent/fraction/container_cgroup.h"
#include "agent/fraction/container_processes.h"
#include "agent/fraction/limit_service.h"
#include "agent/fraction/limit_socket.h"
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
  // Requests in progress end with the clients of the driver and the kubelet. Containers that wait for a limit
  // are refused.
  void detach_devices() override {
    is_attached_ = is_driver_there_ = false;
    limit_socket_.reset();
    limits_.reset();
    auditor_.reset();
  }
  void attach_devices() override {
    is_attached_ = true;
    follow_config();
  }
  void on_state_changed() override {
    const auto snapshot = present_snapshot();
    if (auditor_ && std::exchange(snapshot_, snapshot) != snapshot) auditor_->use_snapshot(snapshot);
    const auto* agent = node_.devices->agent();
    const bool is_there = agent != nullptr && snapshot && agent->status().driver_answers;
    if (!std::exchange(is_driver_there_, is_there) && is_there && limits_) limits_->restore_limits();
  }
  // A driver that was loaded again has lost its limits.
  void on_device_nodes_changed() override {
    if (limits_ && is_driver_there_) limits_->restore_limits();
  }
  void on_allocated() override {
    if (auditor_) auditor_->on_allocated();
  }
  void add_counts(NodeCounts& counts) const override {
    if (auditor_) counts.memory_audit = auditor_->stats();
    if (!limit_problem_.empty()) counts.problems.push_back("memory limits: " + limit_problem_);
  }

 private:
  void follow_config() {
    follow_audit();
    follow_limits();
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

  // Limits that are in force stay, and are cleared with their containers, when the setting is taken back.
  void follow_limits() {
    const auto& settings = node_.config.gpulet.fraction;
    if (!is_attached_) return;
    if (!settings.driver_limits || limit_dir_ != settings.limit_dir) limit_socket_.reset();
    limit_problem_.clear();
    if (!limits_ || limit_dir_ != settings.limit_dir) {
      limit_dir_ = settings.limit_dir;
      limits_.emplace(make_limit_ports(), LimitRecordStore(limit_dir_));
      if (is_driver_there_) limits_->restore_limits();
    }
    if (!settings.driver_limits) {
      if (!limits_->has_limits()) limits_.reset();
      return;
    }
    if (limit_socket_) return;
    constexpr uid_t kRoot = 0;
    auto opened = LimitSocket::open_socket(
        node_.loop, limit_socket_path(settings), kRoot,
        [this](const LimitRequest& request, LimitSocket::Done done) {
          limits_->answer_request(request, std::move(done));
        });
    if (opened) {
      limit_socket_ = std::move(*opened);
    } else {
      limit_problem_ = opened.error().full_message();
      node_.reporter->report_event(Reporter::Severity::kWarning, "MemoryLimitSocket",
                                   "no container with a GPU starts: " + limit_problem_);
    }
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
                   .changed = {},
                   .refreshed =
                       [this](const Status& result) {
                         if (limits_) limits_->on_pods_read(result);
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
        .is_shared_by_mps = [this](const ResourceName& resource) { return is_shared_by_mps(resource); },
    };
  }

  LimitPorts make_limit_ports() {
    return {
        .loop = node_.loop,
        .find_limits = [this](const std::string& uid,
                              const std::string& container) { return find_limits(uid, container); },
        .refresh_pods =
            [this] {
              if (auditor_ && auditor_->ledger() != nullptr) auditor_->ledger()->refresh_pods();
            },
        .find_cgroup =
            [](unsigned pid, const std::string& path) { return find_container_cgroup(pid, path); },
        .has_processes = [](const std::string& cgroup) { return has_processes(cgroup); },
        .watch_end =
            [this](const std::string& cgroup, std::function<void()> ended) {
              return watch_cgroup_end(node_.loop, cgroup, std::move(ended));
            },
        .set_limit = [this](const DeviceUuid&, const std::string&, Bytes,
                            LimitPorts::Done done) { refuse_driver_limit(std::move(done)); },
        .clear_limit = [this](const DeviceUuid&, const std::string&,
                              LimitPorts::Done done) { refuse_driver_limit(std::move(done)); },
        .notify =
            [this](const EvictionEvent& event) {
              if (events_) send_eviction_event(*events_, "memory limit", event);
            },
    };
  }

  ContainerLimits find_limits(const std::string& pod_uid, const std::string& container) {
    if (auditor_ && auditor_->ledger() != nullptr) return auditor_->ledger()->find_limits(pod_uid, container);
    if (node_.client_config) return {};
    return {.state = ContainerLimits::State::kRefused,
            .reason = "the agent has no access to the API server: what Pods request is not known"};
  }

  // Drivers before R615 have no memory limits; of later ones none is asked.
  void refuse_driver_limit(LimitPorts::Done done) {
    node_.loop.post([done = std::move(done)] {
      done(fail(Code::kUnsupported, "the driver has no memory limits: R615 or newer is needed"));
    });
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
  bool is_driver_there_ = false;
  std::string limit_dir_;  // of limits_
  std::optional<LimitService> limits_;
  std::unique_ptr<LimitSocket> limit_socket_;  // null where no container asks; goes before limits_
  std::string limit_problem_;
};

}  // namespace

std::unique_ptr<Component> make_memory_audit_component(Node& node) {
  return std::make_unique<MemoryAuditComponent>(node);
}

}  // namespace gpulet::agent
