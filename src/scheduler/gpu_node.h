// What an agent publishes of its node for the scheduler: the object GpuNode (gpunodes.gpulet.io), named as
// the Node. docs/adr has why it is an object of its own, docs/scheduling.md its fields. Pure.
//
// It is advice and never a ledger: what is allocated is the kubelet's word, and a scheduler that reads an old
// or missing object places worse but never wrongly, as the kubelet has the last word on every device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/strong.h"
#include "health/state.h"
#include "placement/chooser.h"
#include "topology/topology.h"

namespace gpulet::scheduler {

inline constexpr const char* kGpuNodeApiVersion = "gpulet.io/v1alpha1";
inline constexpr const char* kGpuNodeKind = "GpuNode";
inline constexpr const char* kGpuNodesPath = "/apis/gpulet.io/v1alpha1/gpunodes";

// What a decoder takes; whoever encodes is held to the same.
inline constexpr std::size_t kMaxGpuNodeBytes = 256u << 10;
inline constexpr std::size_t kMaxNodeGpus = 64;
inline constexpr std::size_t kMaxResources = 64;
inline constexpr std::size_t kMaxUnits = 512;    // of all resources together
inline constexpr std::size_t kMaxShares = 4096;  // of one resource, as placement takes them
inline constexpr std::size_t kMaxHolders = 4096;
inline constexpr std::size_t kMaxTextBytes = 253;

struct GpuModel {
  std::string name;          // "NVIDIA H100 80GB HBM3", as the driver says it
  std::string architecture;  // "hopper"
  unsigned compute_major = 0, compute_minor = 0;
  std::uint64_t memory_mib = 0;
  friend bool operator==(const GpuModel&, const GpuModel&) = default;
};

struct NodeGpu {
  std::string uuid;
  std::size_t model = 0;  // index into GpuNode::models
  std::optional<int> numa;
  health::State state = health::State::kHealthy;
  std::string reason;  // the worst fault's: "XID 79: GPU has fallen off the bus"; empty when healthy
  std::string load;    // forecast of its use, in the encoding of scheduler/forecast.h; empty: not known
  friend bool operator==(const NodeGpu&, const NodeGpu&) = default;
};

enum class Sharing { kNone, kTimeSlicing, kMps };

// What a resource is counted in: a whole GPU, or one MIG device, with the shares that it is offered as.
struct Unit {
  std::size_t gpu = 0;           // index into GpuNode::gpus
  std::string profile;           // of a MIG device: "1g.10gb"; empty: the whole GPU
  std::uint64_t memory_mib = 0;  // of a MIG device; 0: the GPU's
  unsigned slice = 0;            // where a MIG device begins on its GPU, in memory slices
  unsigned shares = 1;           // devices that the kubelet has of it
  std::uint64_t share_mib = 0;   // what one share may use at the most (MPS); 0: no limit but the unit's
  unsigned out = 0;              // shares that are not offered now
  std::string why;               // those: "XID 79: GPU has fallen off the bus"
  friend bool operator==(const Unit&, const Unit&) = default;
};

struct NodeResource {
  ResourceName name;
  Sharing sharing = Sharing::kNone;
  std::vector<Unit> units;  // in the resource's own order
  friend bool operator==(const NodeResource&, const NodeResource&) = default;
};

// A Pod that holds devices by the kubelet's word.
struct PodHolding {
  struct Part {
    std::size_t resource = 0, unit = 0;  // indices
    unsigned shares = 1;
    friend bool operator==(const Part&, const Part&) = default;
  };
  std::string pod;  // "namespace/name"
  std::vector<Part> parts;
  friend bool operator==(const PodHolding&, const PodHolding&) = default;
};

struct GpuNode {
  std::string driver;         // "570.124.06"
  unsigned cuda_version = 0;  // major*1000 + minor*10, as NVML
  placement::Rules rules;     // by which the node's own GetPreferredAllocation chooses
  std::vector<GpuModel> models;
  std::vector<NodeGpu> gpus;  // by index
  // Between gpus, size squared, row by row; encoded by scheduler/link_matrix.h.
  std::vector<topology::Pair> pairs;
  std::vector<NodeResource> resources;
  std::vector<PodHolding> holders;  // by Pod
  friend bool operator==(const GpuNode& a, const GpuNode& b) {
    return a.driver == b.driver && a.cuda_version == b.cuda_version && a.rules.policy == b.rules.policy &&
           a.rules.shared == b.rules.shared && a.models == b.models && a.gpus == b.gpus &&
           a.pairs == b.pairs && a.resources == b.resources && a.holders == b.holders;
  }

  const GpuModel& model_of(const Unit& unit) const { return models[gpus[unit.gpu].model]; }
  std::uint64_t memory_of(const Unit& unit) const {
    return unit.memory_mib != 0 ? unit.memory_mib : model_of(unit).memory_mib;
  }
};

// "8 GPUs, 1 quarantined, 3 held": what `kubectl get gpunodes` shows.
std::string summary(const GpuNode& node);

// The object's `spec` as JSON of one line; equal nodes give equal bytes. What is above the limits is left
// out, texts are cut.
std::string encode_spec(const GpuNode& node);

struct NamedGpuNode {
  std::string name, resource_version;
  GpuNode node;
};
// A whole object, as the API server has it. Fields that are not known are ignored.
// Errors: kInvalidArgument, about the object's name, with the field, for what is no such object: an index out
// of range, a number or a list above its limit, a matrix that is not of the GPUs' size.
Result<NamedGpuNode> decode_gpu_node(std::string_view object);

// What placement makes its tables of.
topology::Topology topology_of(const GpuNode& node);

}  // namespace gpulet::scheduler
