// The cluster's GPUs as a scheduler may count on them: what the agents publish, and the Pods that the API
// server says are bound. Pure: it is told, and answers; rebuilt from a list and a watch at any time, so any
// number of replicas agree.
//
// Devices that a Pod holds by the kubelet's word are held. A Pod that is bound and not seen as holding yet is
// assumed on the devices that the node's own placement will give it, in the order in which the Pods were
// bound, and stays assumed there while others come and go. Nothing that is assumed outlives the Pod, and the
// published object wins as soon as it names the Pod. A replica that has just begun may assume others of the
// same number than one that was there when they were given, until then.
//
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "scheduler/device_pool.h"
#include "scheduler/gpu_node.h"
#include "scheduler/node_table.h"
#include "scheduler/request.h"

namespace gpulet::scheduler {

// A Pod on a node, and what it has there.
struct Claim {
  std::string pod;  // "namespace/name"
  std::vector<PodHolding::Part> parts;
  bool assumed = false;  // not seen as held yet
  friend bool operator==(const Claim&, const Claim&) = default;
};

struct NodeView {
  std::string name;
  GpuNode node;
  std::vector<std::shared_ptr<DevicePool>> pools;  // by resource
  std::vector<Shares> free;                        // by resource and unit: offered, and nobody's
  std::vector<unsigned> free_total;                // by resource
  std::vector<Shares> held;                        // claimed, seen or assumed
  // MiB that Pods said they will use of a shared unit (gpulet.io/gpu-memory), by resource and unit.
  std::vector<std::vector<std::uint64_t>> spoken_for;
  std::vector<Claim> claims;  // held ones by Pod, then assumed ones as they were bound
  NodeTable::Node place = 0;  // in the table

  // The index of a resource that the node publishes; nullopt for any other.
  std::optional<std::size_t> find(const ResourceName& resource) const;
};

// Devices of one container as the kubelet would give them: by resource index, shares by unit.
using Given = std::vector<std::pair<std::size_t, Shares>>;

// Takes what `request` would get out of `free`, container by container as the kubelet admits them: an init
// container's devices are given to those after it. Resources that the node does not publish are passed over.
// nullopt where something is not enough; `free` is then as far as it came.
std::optional<std::vector<Given>> allocate(const NodeView& node, const PodRequest& request,
                                           std::vector<Shares>& free);

class ClusterView {
 public:
  ClusterView();
  ~ClusterView();
  ClusterView(const ClusterView&) = delete;

  void set_node(const std::string& name, GpuNode node);
  void remove_node(const std::string& name);
  // A Pod that is bound, as it is now. One that has ended, or wants no device, is as one that is gone.
  void set_pod(PodRequest pod);
  void remove_pod(std::string_view name_space, std::string_view name);
  // Every Pod that is bound has been told of: from here on, who is not among them holds nothing, whatever an
  // object says. Before, an object is believed.
  void set_pods_complete();

  // What came so far is all there is at this moment: a Pod that is assumed is assumed among those. Asking
  // settles too.
  void settle();

  // nullptr: nothing is published of it. Valid until the next change.
  const NodeView* find(std::string_view name);
  const PodRequest* pod(const std::string& key) const;
  // How good a node is, by what the policies see of it. Its node numbers are NodeView::place.
  NodeTable& table();
  std::vector<std::string> node_names() const;
  std::vector<std::string> pod_keys() const;  // "namespace/name", in no order

  std::size_t nodes() const { return nodes_.size(); }
  std::size_t pods() const { return pods_.size(); }
  std::size_t pools() const { return pools_.size(); }

 private:
  struct Entry;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  void dirty(Entry& entry);
  void settle(Entry& entry);
  void assume(Entry& entry, const std::vector<const PodRequest*>& pods);
  NodeState state_of(const NodeView& view, ModelId model, std::shared_ptr<const NodeLinks> links) const;

  DevicePools pools_;
  NodeTable table_;
  Models models_;
  std::map<std::string, std::weak_ptr<const NodeLinks>> links_;  // by build_of
  std::unordered_map<std::string, std::unique_ptr<Entry>, Hash, std::equal_to<>> nodes_;
  std::unordered_map<std::string, PodRequest> pods_;
  // Pods of nodes, also of those that publish nothing yet: by node, keys of pods_.
  std::unordered_map<std::string, std::set<std::string>, Hash, std::equal_to<>> pods_of_;
  std::vector<Entry*> dirty_;
  bool pods_complete_ = false;
};

// A GPU's part of a unit, in thousandths of the GPU: all of it, a MIG device's memory, or an equal part where
// several resources share it.
unsigned milli_of(const NodeView& view, std::size_t resource, std::size_t unit);

}  // namespace gpulet::scheduler
