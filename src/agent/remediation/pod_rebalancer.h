// Asks a Pod to leave a GPU that has been hot for long, as scheduler/load/rebalance.h decides: one Eviction
// request, repeated while the API server refuses it (a PodDisruptionBudget) and the GPU stays hot. Off by
// default (`gpulet.rebalance`).
//
// The loads come from the samples of the metrics, the Pods' priorities, owners and annotations from the API
// server, read only while a GPU is hot. Nobody is asked while these are unknown, while a fault evicts Pods of
// the node, or beyond the number of Pods that may leave the node (PodEvictor). Permissions and Events:
// docs/scheduling.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/observe/gpu_load_forecaster.h"
#include "agent/remediation/pod_evictor.h"
#include "base/loop.h"
#include "k8s/object_reader.h"
#include "k8s/pods.h"
#include "metrics/gpulet_page.h"
#include "scheduler/load/rebalance.h"
#include "scheduler/model/gpu_node.h"

namespace gpulet::agent {

// On a Pod or its namespace; the Pod's own wins: "never" or "allow". Any other value means never.
inline constexpr const char* kRebalanceAnnotation = "gpulet.io/rebalance";
// How often the Pods of hot GPUs are read; sooner with a shorter `hotFor`.
inline constexpr Duration kRebalanceReadInterval = std::chrono::seconds(30);

// What the rule sees of a node, without what only the API server knows of the Pods. A Pod with devices of
// several GPUs or resources stays. A GPU with MIG devices or that is not offered in shares is not usable.
// `uses`: of each GPU that was sampled. The node's loads are those by which it chooses. Pure.
std::vector<scheduler::RebalanceGpu> build_rebalance_gpus(
    const scheduler::GpuNode& node, const std::map<DeviceUuid, GpuLoadForecaster::GpuUse>& uses);

struct PodRebalancerPorts {
  Loop& loop;
  k8s::ObjectReader& reader;
  PodEvictor& evictor;  // its limits count
  // build_rebalance_gpus() with the present holders. Called back from the loop, not from inside the call.
  std::function<void(std::function<void(Result<std::vector<scheduler::RebalanceGpu>>)>)> gpus;
  // Starts the eviction of one Pod.
  std::function<std::unique_ptr<k8s::Eviction>(const PodRef& pod, k8s::Eviction::UpdateCallback on_update)>
      evict;
  std::function<void(const EvictionEvent&)> notify;
};

// Loop's thread only.
class PodRebalancer {
 public:
  explicit PodRebalancer(PodRebalancerPorts ports) : ports_(std::move(ports)) {}

  // An eviction that is not accepted yet ends where the policy no longer asks for it.
  void apply_policy(const scheduler::RebalancePolicy& policy);
  bool needs_samples() const { return policy_.enabled || move_; }
  // After each sample of the GPUs. `uses`: GpuLoadForecaster::gpu_uses().
  void on_sampled(const std::map<DeviceUuid, GpuLoadForecaster::GpuUse>& uses);

  const metrics::RebalanceCounts& counts() const { return counts_; }

 private:
  struct Move {
    PodRef pod;
    std::string gpu, reason;
    std::unique_ptr<k8s::Eviction> eviction;
    bool is_accepted = false;
    bool is_reading = false;  // whether it has gone
  };
  // The Pods of the hot GPUs, while they are read.
  struct Round {
    std::vector<scheduler::RebalanceGpu> gpus;
    std::map<std::string, k8s::PodMetadata> pods;         // by "namespace/name"
    std::map<std::string, k8s::Annotations> annotations;  // by namespace
    std::map<std::string, std::string> unknown;           // why a Pod's data is missing
    std::size_t pending = 0;
  };

  bool is_due() const;
  void start_round();
  void read_pods(std::vector<scheduler::RebalanceGpu> gpus);
  void read_pod(const std::string& key, const std::string& name_space, const std::string& name);
  void finish_read();
  void decide();
  void complete_pods(scheduler::RebalanceGpu& gpu) const;
  std::string stays_reason(const k8s::PodMetadata& pod) const;
  void move_pod(const scheduler::RebalanceMove& move);
  void on_eviction_event(const k8s::EvictionUpdate& update);
  void check_whether_gone();
  void abandon_move(const std::string& why);
  void end_move();
  void notify_pod(const PodRef& pod, std::string reason, std::string message);

  PodRebalancerPorts ports_;
  scheduler::RebalancePolicy policy_;
  scheduler::Rebalancer rebalancer_;
  std::vector<std::string> sampled_;  // GPUs
  std::optional<Round> round_;
  std::optional<Time> read_at_;
  std::optional<Move> move_;
  std::optional<EvictionEvent> notified_;  // the last
  std::vector<std::string> kept_;          // as logged
  metrics::RebalanceCounts counts_;
  Lifetime lifetime_;
};

}  // namespace gpulet::agent
