// The agent: one loop that joins driver, health, plan and kubelet. For each event it computes a new snapshot
// and new offers, and serves what differs. A changed config, a lost GPU, a reloaded driver and a restarted
// kubelet are all steps of this loop: nothing is ever restarted.
//
// It reaches the outside world only through its ports and its Loop, so that tests/seeded replays hours of
// faults on a simulated clock. Loop's thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/health/health_controller.h"
#include "agent/node/ports.h"
#include "agent/plugin/offers.h"
#include "agent/plugin/registration.h"
#include "base/loop.h"
#include "config/config.h"
#include "device_plugin/pod_resources.h"

namespace gpulet::agent {

// How a driver that does not respond, or is not loaded yet, is retried.
inline constexpr BackoffLimits kDriverBackoff{std::chrono::milliseconds(100), std::chrono::seconds(5)};
// The same on a node without a GPU, where nobody waits for a driver: a device node of its ends the wait.
inline constexpr Duration kNoGpuRetry = std::chrono::minutes(10);
// A burst of changes (a MIG layout, a reload) is read once, this long after the first.
inline constexpr Duration kReadDelay = std::chrono::milliseconds(20);
// A resource that cannot be served fails liveness after this long.
inline constexpr Duration kStuckAfter = std::chrono::minutes(1);

// The agent at one moment: for /healthz, /readyz and the page of metrics. A plain value.
struct AgentStatus {
  bool driver_answers = false;
  std::string driver_error;  // one line
  bool without_gpu = false;  // there is no driver because the node has no GPU: nothing is wrong
  inventory::SnapshotPtr snapshot;
  std::optional<std::string> config_error;  // the file on disk is invalid; an older one is in force
  struct Resource {
    ResourceName name;
    std::size_t devices = 0, healthy = 0;
    bool registered = false, watched = false;
    std::string error;
  };
  std::vector<Resource> resources;  // by name
  // What else keeps the agent from serving: a state that cannot be saved, and what NodeCounts::problems says.
  std::vector<std::string> other_problems;
  bool stuck = false;  // liveness: see kStuckAfter
  std::uint64_t config_reloads = 0, config_reload_failures = 0, registrations = 0;

  // One line for each problem; empty when the agent is ready.
  std::vector<std::string> problems() const;
};

struct AgentPorts {
  Loop& loop;
  Driver& driver;
  PluginHost& host;
  Reporter& reporter;
  // False: no resource is offered to the kubelet, and `host` is not used.
  bool offers_devices = true;
  // Begins the moves that a config wants, and returns which side offers each GPU. Empty: all are the device
  // plugin's.
  std::function<partition::GpuOffers(const inventory::Snapshot&, const config::Config&,
                                     const std::map<std::string, std::string>& labels)>
      gpu_offers = nullptr;
  // The names of the Pods that hold devices now, for events; may be late or empty.
  std::function<void(std::function<void(std::map<DeviceId, std::string>)>)> list_pods;
  // The driver's files on the node (read_driver_files).
  std::function<DriverFiles(const config::Config&)> read_files;
  // PlanInputs::mps_health and PlanInputs::cdi_names; each may be empty.
  std::function<std::map<std::string, inventory::Health>(std::vector<mps::DaemonSpec>&)> mps_health;
  std::function<std::optional<std::set<std::string>>(const inventory::Snapshot&)> cdi_names;
  // PlanInputs::mps_program_problem; may be empty.
  std::function<std::string(const std::string& driver_version)> mps_program_problem = nullptr;
  // PlanInputs::loads.
  std::shared_ptr<const placement::LoadBoard> loads = nullptr;
  // Whether the node may have a GPU (may_have_gpu): asked when the driver cannot be opened. Empty: it may.
  std::function<bool()> may_have_gpu = nullptr;
  // explain_driver_error: asked when the driver cannot be opened. Empty: the error as it is.
  std::function<Error(const Error&)> explain_driver_error = nullptr;
  // Called after status() changed; may be empty. Must not call the agent from inside.
  std::function<void()> changed;
  // Where faults are persisted; null: nowhere. Outlives the agent.
  HealthStore* health_store = nullptr;
  // After every round that changed a device's status, its other faults, its due time or its evidence sources,
  // and once after the first snapshot (the changes may be empty): on the loop, after the kubelet has been
  // updated. May be empty.
  std::function<void(const health::HealthViewPtr&, const std::vector<health::StatusChange>&)> health_changed =
      nullptr;
  // The kubelet allocated devices to a container: PodResources will list it soon. May be empty.
  std::function<void()> allocated = nullptr;
  // Stops what else holds the driver before set_driver_release() closes it, then calls `done`, once. May be
  // empty.
  std::function<void(std::function<void()> done)> prepare_close = nullptr;
  // The GPUs of the snapshot that are offered to nobody for a while, asked before each plan; empty: those of
  // set_facts().
  std::function<std::map<DeviceUuid, std::string>(const inventory::Snapshot&)> withdrawn = nullptr;
};

class Agent {
 public:
  // `fatal` is called at most once, when the agent must exit with code 1: if there is no driver at start and
  // failOnInitError is true, as in NVIDIA's plugin.
  Agent(AgentPorts ports, config::Config config, std::uint64_t seed, std::function<void(const Error&)> fatal);
  ~Agent();
  Agent(const Agent&) = delete;

  void start_agent();
  // Puts a valid config in force; acts only on what differs.
  void reconfigure(config::Config config);
  // Reports that the config on disk is invalid; the one in force stays.
  void reject_config(const Error& error);

  // Closes the driver and keeps it closed; its devices stay served, as unhealthy with this reason. nullopt
  // opens it again, which makes healthy devices allocatable at once. Before start_agent() too: then the
  // driver is not opened at all. The HealthView says when it is closed (HealthView::release).
  void set_driver_release(std::optional<std::string> reason);

  // Sets the node's labels and the GPUs withdrawn for a while; plans again if they differ.
  void set_facts(partition::NodeFacts facts);
  // Plans again after a port has new values.
  void replan() { update_offers(); }
  // Opens the driver now, on a node that had no GPU until now.
  void retry_driver();
  // Reads a new snapshot soon.
  void request_reading() { schedule_reading(Duration::zero()); }

  // The health of every device; null before the first snapshot.
  health::HealthViewPtr health_view() const { return health_controller_.health_view(); }
  // Evidence from another source than the driver: an operator's command (kCordon, kUncordon), ResetDone.
  void submit_evidence(const health::Evidence& evidence) { health_controller_.add_evidence(evidence); }
  // As HealthController::set_repair_notes().
  void set_repair_notes(std::map<DeviceUuid, std::string> notes) {
    health_controller_.set_repair_notes(std::move(notes));
  }
  // A line of the kernel's log (agent/driver/kernel_log.h).
  void submit_evidence(const health::FaultLine& line) { health_controller_.add_evidence(line); }
  // `absent`: why the kernel log cannot be read; nullopt if it can.
  void set_kernel_log_status(std::optional<std::string> absent) {
    health_controller_.set_kernel_log_source(std::move(absent));
  }
  // As HealthController::set_preflights().
  void set_preflights(Preflights preflights) { health_controller_.set_preflights(std::move(preflights)); }
  // `absent`: why the driver withholds the events of MIG instances; nullopt if it does not.
  void set_mig_event_status(std::optional<std::string> absent) {
    health_controller_.set_mig_event_source(std::move(absent));
  }

  AgentStatus status() const;
  // Every device of every resource that is served.
  device_plugin::DevicesByResource devices_by_resource() const;
  // Current offers, by resource name.
  std::vector<device_plugin::OfferPtr> offers() const;

 private:
  struct ServedResource {
    device_plugin::OfferPtr offer;
    std::unique_ptr<Registration> registration;
    bool serving = false;              // its socket is open
    std::optional<Time> broken_since;  // not served, or registered and not watched
    std::string serve_error;
    Subscription retry;
  };

  void open_driver();
  void on_driver_opened(const Status& status);
  void driver_failed(const Error& error);
  void report_driver_failure(const Error& error);
  void mark_gpus_unreadable(const Error& error);
  void mark_released();
  void close_driver();
  void on_driver_closed(const Status& status);
  void schedule_reading(Duration delay = kReadDelay);
  void start_reading();
  void on_reading(Result<inventory::Snapshot> snapshot);
  void schedule_recheck();

  void on_health_update(const health::HealthViewPtr& view, const HealthChanges& changes);

  // Applies health to the last reading, publishes it, plans, and updates the kubelet where it differs.
  void update_offers();
  void report_missing_gpus(const inventory::Snapshot& before, const inventory::Snapshot& after);
  void report_health_changes(const health::HealthView& view, const HealthChanges& changes);
  void notify_changed() const;
  // Marks the GPUs that rules withhold, in the last reading and in the health of devices.
  void mark_excluded_gpus();
  void report_notes(const Offers& built);
  void serve_resource(const ResourceName& name, ServedResource& served);
  void withdraw_unoffered(const std::vector<device_plugin::OfferPtr>& offers);

  void on_kubelet_started();
  void on_socket_lost(const ResourceName& name);
  void on_watched(const ResourceName& name, bool watched);

  AgentPorts ports_;
  config::Config config_;
  partition::NodeFacts facts_;
  std::uint64_t seed_;
  std::function<void(const Error&)> fatal_;

  HealthController health_controller_;
  OfferBuilder builder_;
  std::optional<inventory::Snapshot> reading_;  // as the driver returned it, without health
  inventory::SnapshotPtr published_;
  std::map<ResourceName, ServedResource> served_;
  NewNotes reported_notes_, logged_remarks_;

  bool opened_once_ = false;
  bool without_gpu_ = false;
  bool driver_answers_ = false;
  std::optional<Error> driver_error_;
  Backoff driver_backoff_;
  bool started_ = false;
  bool opening_ = false, closing_ = false;
  std::optional<std::string> release_;  // why the driver is to be closed
  bool closed_ = false;                 // since then
  bool close_failure_reported_ = false;
  bool reading_in_progress_ = false;
  bool reading_requested_ = false;
  Subscription driver_timer_, read_timer_, recheck_timer_;

  std::optional<std::string> config_error_;
  std::uint64_t config_reloads_ = 0, config_reload_failures_ = 0, registrations_ = 0;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
