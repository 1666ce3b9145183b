// The state of a cluster's GPUs for scheduling: its nodes with held and assumed devices. Pure. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "placement/chooser.h"
#include "scheduler/core/controller_index.h"
#include "scheduler/core/device_pool.h"
#include "scheduler/core/node_table.h"
#include "scheduler/model/gpu_node.h"
#include "scheduler/model/pod_request.h"

namespace gpulet::scheduler {

// The GPUs of a cluster as a scheduler may count on them: the agents' GpuNodes and the bound Pods of the API
// server. Pure: state in, answers out. It is rebuilt from a list and a watch at any time, so any number of
// replicas agree.
//
// Devices that the kubelet reports for a Pod are held. A bound Pod that the kubelet does not report yet is
// assumed on the devices that the node's placement will give it, in the order in which Pods were bound, and
// stays there while others come and go. An assumption ends with the Pod, or when the GpuNode names the Pod.
// Until then a new replica may assume other devices of the same number than an older one.
//
// One thread.

// A Pod on a node, and its devices there.
struct PodClaim {
  std::string pod;  // "namespace/name"
  std::vector<PodAllocation::Part> parts;
  bool assumed = false;             // not reported by the kubelet yet
  bool leaving = false;             // the Pod is being deleted
  fraction::MemoryAmount memory{};  // that the Pod's largest request for a share is
  friend bool operator==(const PodClaim&, const PodClaim&) = default;
};

struct ClusterNode {
  std::string name;
  GpuNode node;
  std::vector<std::shared_ptr<DevicePool>> pools;  // by resource
  std::vector<Shares> free;                        // by resource and unit: offered and not held
  std::vector<unsigned> free_total;                // by resource
  std::vector<Shares> held;                        // held or assumed; several Pods may hold one claim
  std::vector<placement::GpuLoad> loads;           // by GPU
  // MiB that Pods requested of a shared unit, by resource and unit.
  std::vector<std::vector<std::uint64_t>> requested_mib;
  std::vector<PodClaim> claims;       // held ones by Pod, then assumed ones in binding order
  std::vector<PodRequest> nominated;  // Pods that kube-scheduler makes room for here, highest priority first
  NodeTable::Node table_node = 0;     // in the NodeTable

  // The index of a published resource; nullopt for any other.
  std::optional<std::size_t> find_resource(const ResourceName& resource) const;
};

// The shares that a node offers, held or not, by resource and unit.
std::vector<Shares> offered_shares(const GpuNode& node);
// Takes what a Pod holds out of `free`. Never below zero: an object may report a share as held twice.
void subtract_parts(std::vector<Shares>& free, const std::vector<PodAllocation::Part>& parts);
// Counts what would be free, by resource in total, and requested of shared units, once the Pods that are
// being deleted have left.
void count_without_leaving(ClusterNode& node);

// Devices of one container as the kubelet would allocate them: shares by unit, by resource index.
using ContainerAllocation = std::vector<std::pair<std::size_t, Shares>>;

// Takes what `request` would get out of `free`, container by container in the kubelet's admission order: an
// init container's devices are reused by those after it. Unpublished resources are skipped. Returns nullopt
// when a resource is short; `free` is then partly used.
std::optional<std::vector<ContainerAllocation>> allocate_devices(const ClusterNode& node,
                                                                 const PodRequest& request,
                                                                 std::vector<Shares>& free);

class ClusterState {
 public:
  ClusterState();
  ~ClusterState();
  ClusterState(const ClusterState&) = delete;

  void set_node(const std::string& name, GpuNode node);
  void remove_node(const std::string& name);
  // Adds or updates a bound Pod. A finished Pod, or one without devices and claims, is removed. Which devices
  // a claim holds only the GpuNode says: they are never assumed.
  void set_pod(PodRequest pod);
  void remove_pod(std::string_view name_space, std::string_view name);
  // Adds or updates a Pod that is not bound, with a nominated node; without one, or without devices, it is
  // removed.
  void set_nominated(PodRequest pod);
  void remove_nominated(std::string_view name_space, std::string_view name);
  // Marks the list of bound Pods as complete: from now on a Pod that is not in it holds nothing, whatever a
  // GpuNode says. Until then GpuNodes are believed.
  void mark_pods_synced();

  // Recomputes changed nodes, so that Pods are assumed against the state of this moment. Reading a node does
  // so too.
  void recompute_nodes();

  // nullptr: no GpuNode. Valid until the next change.
  const ClusterNode* find_node(std::string_view name);
  const PodRequest* find_pod(const std::string& key) const;
  // What policies see of each node; its node numbers are ClusterNode::table_node.
  NodeTable& node_table();
  std::vector<std::string> node_names() const;
  std::vector<std::string> pod_keys() const;  // "namespace/name", in no order
  std::vector<std::string> nominated_keys() const;

  // What the agents know of the Pod's controller: the load of one Pod on each of its GPUs, by the node that
  // has seen most of it. nullopt if none has seen it for a day.
  std::optional<LoadCurve> expected_load_of(const PodRequest& pod) const;
  // The same with the controller, unless the agent of the node where the Pod is bound knows it itself.
  std::optional<ControllerLoad> load_known_elsewhere(const PodRequest& pod) const;

  std::size_t node_count() const { return nodes_.size(); }
  std::size_t pod_count() const { return pods_.size(); }
  std::size_t pool_count() const { return pools_.size(); }

 private:
  struct Entry;
  struct StringHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  void mark_dirty(Entry& entry);
  void recompute_nodes(Entry& entry);
  void assume_pods(Entry& entry, const std::vector<const PodRequest*>& pods);
  NodeState make_node_state(const ClusterNode& view, ModelId model,
                            std::shared_ptr<const NodeLinks> links) const;

  DevicePoolCache pools_;
  NodeTable table_;
  Models models_;
  std::map<std::string, std::weak_ptr<const NodeLinks>> links_;  // by topology_key
  std::unordered_map<std::string, std::unique_ptr<Entry>, StringHash, std::equal_to<>> nodes_;
  std::unordered_map<std::string, PodRequest> pods_;
  // Keys of pods_ by node, also of nodes without a GpuNode.
  std::unordered_map<std::string, std::set<std::string>, StringHash, std::equal_to<>> pods_of_;
  std::map<std::string, PodRequest> nominated_;  // by key; few, and of few nodes
  std::vector<Entry*> dirty_;
  ControllerIndex controllers_;
  bool pods_synced_ = false;
};

// A GPU's part of a unit in thousandths of the GPU: all of it, a MIG device's memory share, or an equal part
// where several resources offer the GPU.
unsigned unit_milli(const ClusterNode& view, std::size_t resource, std::size_t unit);

}  // namespace gpulet::scheduler
