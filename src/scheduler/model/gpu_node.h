// What an agent publishes about its node for the scheduler: the object GpuNode (gpunodes.gpulet.io), named
// like the Node. See docs/adr/0020 for why it is a separate object and docs/scheduling.md for its fields.
// Pure.
//
// It is a hint, not a ledger: the kubelet allocates. A scheduler with an old or missing object places worse,
// never wrongly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "fraction/limit_grade.h"
#include "health/state/device_status.h"
#include "placement/chooser.h"
#include "scheduler/model/controller.h"
#include "scheduler/model/mig_demand.h"
#include "topology/topology.h"

namespace gpulet::scheduler {

inline constexpr const char* kGpuNodeApiVersion = "gpulet.io/v1alpha1";
inline constexpr const char* kGpuNodeKind = "GpuNode";
inline constexpr const char* kGpuNodesPath = "/apis/gpulet.io/v1alpha1/gpunodes";

// The resource of devices that a node offers by claims, named like their driver. It is no extended resource:
// no Pod can request it, and no kubelet counts it.
inline constexpr const char* kClaimedResource = "gpu.nvidia.com";

// Limits of the decoder; the encoder obeys them too.
inline constexpr std::size_t kMaxGpuNodeBytes = 256u << 10;
inline constexpr std::size_t kMaxNodeGpus = 64;
inline constexpr std::size_t kMaxResources = 64;
inline constexpr std::size_t kMaxUnits = 512;    // of all resources together
inline constexpr std::size_t kMaxShares = 4096;  // of one resource, as in placement
inline constexpr std::size_t kMaxAllocations = 4096;
inline constexpr std::size_t kMaxControllers = 32;
inline constexpr std::size_t kMaxTextBytes = 253;

struct GpuModel {
  std::string name;          // "NVIDIA H100 80GB HBM3", from the driver
  std::string architecture;  // "hopper"
  unsigned compute_major = 0, compute_minor = 0;
  std::uint64_t memory_mib = 0;
  friend bool operator==(const GpuModel&, const GpuModel&) = default;
};

struct NodeGpu {
  std::string uuid;
  std::size_t model = 0;  // index into GpuNode::models
  std::optional<int> numa;
  health::DeviceState state = health::DeviceState::kHealthy;
  std::string reason;        // of the worst fault: "XID 79: GPU has fallen off the bus"; empty if healthy
  std::string load;          // load forecast as encoded by scheduler/load/forecast.h; empty: unknown
  placement::GpuLoad now{};  // by which the node chooses among its GPUs
  friend bool operator==(const NodeGpu&, const NodeGpu&) = default;
};

enum class Sharing { kNone, kTimeSlicing, kMps };

// The unit of a resource: a whole GPU or one MIG device, with the number of shares that it is offered as.
struct ResourceUnit {
  std::size_t gpu = 0;             // index into GpuNode::gpus
  std::string profile;             // of a MIG device: "1g.10gb"; empty: a whole GPU
  std::uint64_t memory_mib = 0;    // of a MIG device; 0: the GPU's
  unsigned slice = 0;              // first memory slice of a MIG device on its GPU
  unsigned shares = 1;             // devices that the kubelet has for it
  std::uint64_t share_mib = 0;     // memory limit of one share (MPS); 0: only the unit's
  unsigned unavailable = 0;        // shares that are currently not offered
  std::string unavailable_reason;  // their reason: "XID 79: GPU has fallen off the bus"
  friend bool operator==(const ResourceUnit&, const ResourceUnit&) = default;
};

struct NodeResource {
  ResourceName name;
  Sharing sharing = Sharing::kNone;
  placement::SharesOn shares_on = placement::SharesOn::kAnyGpu;  // the shares of a container
  std::vector<ResourceUnit> units;                               // in the resource's order
  friend bool operator==(const NodeResource&, const NodeResource&) = default;
};

// A Pod that holds devices, as reported by the kubelet.
struct PodAllocation {
  struct Part {
    std::size_t resource = 0, unit = 0;  // indices
    unsigned shares = 1;
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::string pod;  // "namespace/name"
  std::vector<Part> parts;
  friend bool operator==(const PodAllocation&, const PodAllocation&) = default;
};

struct GpuNode {
  std::string driver;         // "570.124.06"
  unsigned cuda_version = 0;  // major*1000 + minor*10, as NVML
  placement::Rules rules;     // used by the node's own GetPreferredAllocation
  std::vector<GpuModel> models;
  std::vector<NodeGpu> gpus;  // by index
  // Between GPUs: size squared, row by row; encoded by scheduler/model/links.h.
  std::vector<topology::Pair> pairs;
  std::vector<NodeResource> resources;
  std::vector<PodAllocation> allocations;  // by Pod
  // What controllers' Pods did here, for those that replace them: by controller, each once.
  std::vector<ControllerLoad> controllers;
  // What holds the memory limits of containers on its shared GPUs, of all of them; of MPS, see
  // ResourceUnit::share_mib.
  fraction::LimitMeans memory_limit{};
  MigOffer mig_offer{};  // what it could cut for Pods that wait
  // Why its shares by MPS do not hold nvidia.com/gpucores, one line; empty: they do, or there are none.
  std::string no_compute_limit{};
  friend bool operator==(const GpuNode& a, const GpuNode& b) {
    return a.driver == b.driver && a.cuda_version == b.cuda_version && a.rules == b.rules &&
           a.models == b.models && a.gpus == b.gpus && a.pairs == b.pairs && a.resources == b.resources &&
           a.allocations == b.allocations && a.controllers == b.controllers &&
           a.memory_limit == b.memory_limit && a.mig_offer == b.mig_offer &&
           a.no_compute_limit == b.no_compute_limit;
  }

  const GpuModel& unit_model(const ResourceUnit& unit) const { return models[gpus[unit.gpu].model]; }
  std::uint64_t unit_memory_mib(const ResourceUnit& unit) const {
    return unit.memory_mib != 0 ? unit.memory_mib : unit_model(unit).memory_mib;
  }
};

// "8 GPUs, 1 quarantined, 3 held": a column of `kubectl get gpunodes`.
std::string gpu_node_summary(const GpuNode& node);

// The object's `spec` as one line of JSON; equal nodes give equal bytes. Anything above the limits is
// dropped, strings are truncated.
std::string encode_spec(const GpuNode& node);

// The object's `status`, which the extender writes and the node's agent reads: what other nodes know of the
// controllers of Pods that were bound here. As one line of JSON, within the limits.
std::string encode_status(std::vector<ControllerLoad> controllers);

struct NamedGpuNode {
  std::string name, resource_version;
  GpuNode node;
  std::vector<ControllerLoad> known_elsewhere;  // status.controllers; none if the status is malformed
  MigDemand mig_demand{};                       // status.migDemand
};
// Decodes a whole object of the API server. Unknown fields are ignored. Errors: kInvalidArgument, about the
// object's name, with the field: an index out of range, a number or list above its limit, a matrix of the
// wrong size.
Result<NamedGpuNode> decode_gpu_node(std::string_view object);

// The input of placement.
topology::Topology gpu_node_topology(const GpuNode& node);

}  // namespace gpulet::scheduler
