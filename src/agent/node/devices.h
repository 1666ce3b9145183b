// The devices of the node and who serves them: the driver, the kubelet's sockets, its PodResources client,
// the kernel's log, and the Agent that joins them. They are replaced together where a setting of where they
// are changes: a new configuration never needs a new process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/driver/kernel_log.h"
#include "agent/driver/nvml_driver.h"
#include "agent/health/health_controller.h"
#include "agent/node/agent.h"
#include "agent/node/component.h"
#include "agent/node/node.h"
#include "agent/resources/cdi_controller.h"
#include "agent/resources/mps_controller.h"
#include "device_plugin/plugin_host.h"
#include "device_plugin/pod_resources.h"

namespace gpulet::agent {

// Loop's thread only.
class Devices final : public Component {
 public:
  // `mps` and `cdi` outlive it.
  Devices(Node& node, MpsController& mps, CdiController& cdi);
  ~Devices() override;

  void start() override;
  void apply_config() override;
  void on_node_labels() override;
  void add_counts(NodeCounts& counts) const override;

  // Null before the node's config is known, and once the devices are closed.
  const Agent* agent() const { return agent_ ? &*agent_ : nullptr; }
  NvmlDriver* driver() { return driver_.get(); }
  // Its Lists wait for the kubelet's allocations (device_plugin/list_delay.h).
  // Preconditions: attach_devices() was called after the last detach_devices().
  device_plugin::PodResources& pod_resources() { return *pod_resources_; }

  // Each does nothing while there is no agent.
  void submit_evidence(const health::Evidence& evidence);
  void replan();
  // Whether the last plan offers no GPU because no container could use CUDA (resources/device_nodes.h).
  bool lacks_compute() const { return lacks_compute_; }
  void retry_driver();
  void request_reading();
  // As HealthController::set_repair_notes().
  void set_repair_notes(std::map<DeviceUuid, std::string> notes);
  // Before and after a reset of these GPUs, as GpuRepairPorts::pause_daemons.
  void pause_mps_for_reset(const std::vector<DeviceUuid>& gpus, std::function<void(Status)> done);
  void resume_mps_after_reset();
  // As Agent::set_mig_event_status().
  void set_mig_event_status(std::optional<std::string> absent);

  // Agent::set_driver_release(). MPS control daemons are stopped too, unless a container uses one of them.
  void set_driver_release(std::optional<std::string> reason);

  // GPUs that are offered to nobody for a while, each with the reason.
  enum class WithdrawnFor { kMigChange, kReset, kPreflight };
  void set_withdrawn(WithdrawnFor purpose, std::map<DeviceUuid, std::string> gpus);
  const std::map<DeviceUuid, std::string>& withdrawn_for(WithdrawnFor purpose) { return withdrawn_[purpose]; }
  // Asked before each plan for those of kPreflight, so that none is offered before it is known; may be empty.
  using BeforeOffer = std::function<std::map<DeviceUuid, std::string>(const inventory::Snapshot&)>;
  void set_before_offer(BeforeOffer source);
  bool has_before_offer() const { return before_offer_ != nullptr; }
  // Called before the driver closes on request, to end what else of this agent holds it; it calls `done`
  // once. May be empty.
  using BeforeClose = std::function<void(std::function<void()> done)>;
  void set_before_close(BeforeClose hook) { before_close_ = std::move(hook); }
  // As HealthController::set_preflights().
  void set_preflights(Preflights preflights);
  const std::map<DeviceUuid, std::string>& withdrawn() const { return facts_.withdrawn; }
  // The config on disk is bad: the one in force stays; at the start, flags and environment alone.
  void reject_config(const Error& error);

  using Containers = std::vector<ContainerDevices>;
  using Holders = std::map<DeviceId, std::string>;
  // Which containers hold devices, from the kubelet; `done` comes from the loop.
  void list_containers(std::function<void(Result<Containers>)> done);
  // The same for whom a container waits to start: only an Allocate in progress delays it.
  void list_for_start(std::function<void(Result<Containers>)> done);
  // Which Pod holds each device.
  void list_holders(std::function<void(Result<Holders>)> done);
  // As PluginHost::shows_allocations().
  bool shows_allocations() const { return host_ && host_->shows_allocations(); }

  // Why the shares by MPS that rules offer do not hold nvidia.com/gpucores, one line; empty: they do, or
  // there are none.
  std::string why_no_compute_limit();

  // As PluginHost::set_demand_source(), whatever host is there.
  void set_demand_source(device_plugin::DemandSource source);

  // The kubelet's sockets close, for good.
  void close();

 private:
  // Settings that say where the node's parts are: a change of one replaces them.
  struct Endpoints {
    explicit Endpoints(const config::Config& config);
    std::string device_plugin_dir, kubelet_socket, driver_root;
    std::chrono::milliseconds driver_call_timeout;
    config::DriverHold driver_hold;
    friend bool operator==(const Endpoints&, const Endpoints&) = default;
  };

  void build();
  void connect_to_kubelet();
  void rebuild();
  AgentPorts make_ports();
  void watch_kernel_log();
  // `resources`: null before the node's configuration has been chosen.
  void list_by(device_plugin::PodResources* resources, std::function<void(Result<Containers>)> done);
  void pause_mps(std::function<void()> done);
  void merge_withdrawn();

  Node& node_;
  MpsController& mps_;
  CdiController& cdi_;
  bool is_closed_ = false;
  bool lacks_compute_ = false;
  partition::NodeFacts facts_;
  std::map<WithdrawnFor, std::map<DeviceUuid, std::string>> withdrawn_;
  BeforeOffer before_offer_;
  BeforeClose before_close_;
  bool is_mps_paused_ = false;  // for a reset
  std::optional<std::string> release_;
  std::optional<Endpoints> endpoints_;
  device_plugin::DemandSource demand_source_;
  HealthFileStore health_file_;
  std::optional<std::string> kernel_log_path_;  // as last tried
  std::unique_ptr<KernelLog> kernel_log_;
  std::unique_ptr<NvmlDriver> driver_;
  std::unique_ptr<device_plugin::PluginHost> host_;
  // Without a delay, for Allocate itself; the others use it, and go first.
  std::unique_ptr<device_plugin::PodResources> undelayed_resources_;
  std::unique_ptr<device_plugin::PodResources> pod_resources_, start_resources_;
  std::optional<Agent> agent_;  // goes first: it uses those above
};

}  // namespace gpulet::agent
