// Asks nodes to cut MIG devices for Pods that wait (scheduler/core/mig_demand_planner.h): watches the pending
// Pods, plans every few seconds, and writes each node's demand into the `status` of its GpuNode, where the
// agent reads it. Tells the Pods by Events.
//
// A demand is renewed while its Pods wait, and void for the agent when nobody renews it. Replicas are equal:
// one finds what another has recorded, and writes only what differs or was not renewed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/loop.h"
#include "k8s/api_client.h"
#include "k8s/client_config.h"
#include "k8s/event_recorder.h"
#include "k8s/watcher.h"
#include "scheduler/core/cluster_state.h"
#include "scheduler/core/mig_demand_planner.h"

namespace gpulet::extender {

inline constexpr const char* kMigRequestedReason = "MigDeviceRequested";
inline constexpr const char* kMigCutReason = "MigDeviceCut";
inline constexpr const char* kMigUnmetReason = "MigDeviceNotCut";

inline constexpr std::size_t kMaxWaitingPods = 10'000;  // further ones are not served
// Of a pass, which shares the loop with kube-scheduler's questions: those that wait longest.
inline constexpr std::size_t kMaxPlannedPods = 256, kMaxPodEvents = 64;

struct MigDemandTiming {
  Duration plan_every = std::chrono::seconds(5);
  Duration renew_every = std::chrono::minutes(1);  // a third of the agent's kMigDemandLifetime
  // From when the devices are free until another node is tried: the Pod cannot run there.
  Duration give_up = std::chrono::minutes(2);
  // That node, for that Pod; twice as long each time, for any node.
  Duration avoid = std::chrono::minutes(30), longest_avoid = std::chrono::hours(8);
  Duration report_every = std::chrono::minutes(10);  // the same reason, to a Pod
};

struct MigDemandPorts {
  Loop& loop;
  scheduler::ClusterState& cluster;
  std::function<bool()> is_synced;  // the cluster's nodes and Pods are listed
  std::function<void(k8s::Event)> send_event;
  // The node's new demand as the body of a merge patch of its GpuNode's status; the newest wins.
  std::function<void(const std::string& node, std::string status)> write;
};

// Loop's thread only.
class MigDemandController {
 public:
  // `wait`: how long a Pod waits before a node is asked.
  MigDemandController(MigDemandPorts ports, Duration wait, MigDemandTiming timing = {});
  MigDemandController(const MigDemandController&) = delete;

  // A pending Pod as listed, added or changed; one that is gone.
  void set_pod(std::string_view object);
  void remove_pod(const std::string& key);
  std::vector<std::string> pod_keys() const;
  // Every pending Pod has been passed: nothing is planned before.
  void mark_pods_listed() { pods_listed_ = true; }
  // A node's demand as recorded, at each change of its GpuNode.
  void set_recorded(const std::string& node, const scheduler::MigDemand& demand);

 private:
  struct Waiting {
    scheduler::WaitingPod pod;
    Time since{};
    std::string asked;               // node
    std::optional<Time> free_since;  // there
    struct Report {
      std::string message;
      Time at{};
    };
    std::map<std::string, Report> reported;  // by reason
  };
  // Of a Pod that nodes were given up for.
  struct GivenUp {
    Duration avoid{};  // the last time
    Time forget_at{};
  };
  struct Recorded {
    scheduler::MigDemand demand;
    Time renewed_at{};
  };
  struct Written {
    std::vector<scheduler::MigDemand::Request> requests;
    Time at{};
  };

  void plan_later();
  void plan_demands();
  std::map<std::string, scheduler::MigSupply> read_supplies();
  std::vector<Waiting*> pods_in_order();
  std::vector<scheduler::WaitingPod> due_pods(const std::map<std::string, scheduler::MigSupply>& nodes,
                                              Time now);
  void give_up_nodes(Time now, const std::map<std::string, scheduler::MigSupply>& nodes);
  void avoid_node(const std::string& pod, const std::string& node, Time now);
  void write_demands(const scheduler::MigDemandPlan& plan, Time now);
  void report_pods(const scheduler::MigDemandPlan& plan,
                   const std::map<std::string, scheduler::MigSupply>& nodes, Time now);
  bool send_pod_event(Waiting& waiting, bool warning, const char* reason, const std::string& message,
                      Time now);
  std::string free_gpus(const std::string& node, const ResourceName& resource) const;

  MigDemandPorts ports_;
  const Duration wait_;
  const MigDemandTiming timing_;
  std::map<std::string, Waiting> waiting_;                             // by Pod
  std::map<std::string, Recorded> recorded_;                           // by node
  std::map<std::string, Written> written_;                             // by node; until it is recorded
  std::map<std::pair<std::string, std::string>, Time> avoided_until_;  // Pod and node
  std::map<std::string, GivenUp> given_up_;                            // by Pod
  bool pods_listed_ = false;
  Subscription timer_;
};

// Writes `status` of GpuNodes; needs patch on gpunodes/status. Loop's thread only.
class GpuNodeStatusWriter {
 public:
  GpuNodeStatusWriter(Loop& loop, k8s::ClientConfig access, k8s::SendTiming timing = {});
  GpuNodeStatusWriter(const GpuNodeStatusWriter&) = delete;
  void write_status(const std::string& node, std::string body);

 private:
  void send_status();

  std::map<std::string, std::string> pending_;  // body by node
  k8s::RetryingSender sending_;
};

// Watches the pending Pods for the controller; needs list and watch on pods. Loop's thread only.
std::unique_ptr<k8s::CollectionWatcher> watch_pending_pods(Loop& loop, const k8s::ClientConfig& access,
                                                           MigDemandController& controller,
                                                           k8s::CollectionTiming timing = {});

}  // namespace gpulet::extender
