// `gpulet.partition`: a list of rules that decides how each GPU is offered, or that it is withheld. The first
// rule that selects a GPU applies; GPUs without a rule follow `flags` and `sharing`. Plain values and their
// reader; partition/rules.h applies them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/types.h"
#include "inventory/snapshot.h"
#include "placement/chooser.h"

namespace gpulet::config {

namespace yaml {
struct Node;
}
class Problems;

enum class MigStrategy { kNone, kSingle, kMixed };

struct AllDevices {
  friend bool operator==(const AllDevices&, const AllDevices&) = default;
};
struct DeviceCount {
  unsigned count = 0;
  friend bool operator==(const DeviceCount&, const DeviceCount&) = default;
};

// "3", "0-3", "GPU-…" or "0000:1b:00.0": GPUs by the driver's index, or one by UUID or PCI address.
struct GpuRef {
  unsigned first = 0, last = 0;
  DeviceUuid uuid;                                // if set, only this GPU
  std::optional<inventory::PciAddress> pci = {};  // if set, only this GPU
  bool is_range() const { return uuid.empty() && !pci; }
  std::string ref_text() const {
    if (!uuid.empty()) return uuid.str();
    if (pci) return pci->sysfs_text();
    return std::to_string(first) + (last != first ? "-" + std::to_string(last) : "");
  }
  friend bool operator==(const GpuRef&, const GpuRef&) = default;
};
using GpuRefs = std::vector<GpuRef>;
// All GPUs that no earlier rule took and the other conditions admit; the first N of them; or a list.
using GpuSelection = std::variant<AllDevices, DeviceCount, GpuRefs>;

// Requires a node label, with this value if set.
struct NodeLabel {
  std::string key;
  std::optional<std::string> value;
  friend bool operator==(const NodeLabel&, const NodeLabel&) = default;
};

// What limits the claims that share a whole GPU: nothing, the memory that each of them requests, or a count.
enum class ShareLimit { kUnlimited, kMemory, kCount };
struct ConsumableShares {
  ShareLimit limit = ShareLimit::kUnlimited;
  unsigned count = 0;  // with kCount, at least 1
  friend bool operator==(const ConsumableShares&, const ConsumableShares&) = default;
};

// One GPU, one device, named by `resources.gpus` unless `name` is set; "<base>" below.
struct Whole {
  std::optional<ResourceName> name;
  // Set: for claims only, several of which may have the GPU.
  std::optional<ConsumableShares> consumable_shares = {};
  friend bool operator==(const Whole&, const Whole&) = default;
};

// Every GPU as `replicas` shares, named <base>.shared unless `name` is set.
struct TimeSlicing {
  std::optional<ResourceName> name;
  unsigned replicas = 0;
  bool fail_requests_greater_than_one = false;
  placement::SharesOn shares_on = placement::SharesOn::kAnyGpu;
  friend bool operator==(const TimeSlicing&, const TimeSlicing&) = default;
};

// A share's part of its GPU, in percent.
struct MpsShare {
  unsigned memory = 0, threads = 0;
  friend auto operator<=>(const MpsShare&, const MpsShare&) = default;
};
struct NamedMpsShare {
  MpsShare size;
  std::optional<ResourceName> name;
  friend bool operator==(const NamedMpsShare&, const NamedMpsShare&) = default;
};

// Has `replicas` (equal shares; memory and threads are divided as by NVIDIA, memory only with `memory_limit`)
// or `shares`. Shares of one size form one resource, <base>.shared unless `name` is set. Shares of several
// sizes form one resource each: the share's own name, or `name` (default <base>.mps) with "-<memory>", and
// "-<threads>" if it differs.
struct Mps {
  std::optional<ResourceName> name;
  unsigned replicas = 0;
  std::vector<NamedMpsShare> shares;
  bool fail_requests_greater_than_one = true;
  placement::SharesOn shares_on = placement::SharesOn::kAnyGpu;
  bool memory_limit = true;  // of `replicas`
  // Each of the `replicas` has SMs of its own; a container has one share, as it has one SM partition.
  bool sm_partitions = false;
  friend bool operator==(const Mps&, const Mps&) = default;
};

inline constexpr std::string_view kMpsSuffix = ".mps";
// Whether all shares have one size and so form one resource.
inline bool has_equal_shares(const Mps& mps) {
  for (const auto& share : mps.shares) {
    if (share.size != mps.shares.front().size) return false;
  }
  return true;
}
// "-60", or "-60-30" if threads differ from memory.
inline std::string share_suffix(const MpsShare& size) {
  return "-" + std::to_string(size.memory) +
         (size.threads == size.memory ? "" : "-" + std::to_string(size.threads));
}

// Has `layout` (from the layout file, or derived) or `devices` (count by profile). Resources are named by
// `resources.mig`, else by the strategy (single: nvidia.com/gpu; mixed: mig-<profile>), unless `name` is set.
struct Mig {
  std::optional<ResourceName> name;
  std::string layout;
  std::map<std::string, unsigned> devices;
  MigStrategy strategy = MigStrategy::kMixed;  // never none
  // Idle space may be cut for Pods that wait for a profile, within gpulet.mig.onDemand; only with strategy
  // mixed and without `name`.
  bool on_demand = false;
  friend bool operator==(const Mig&, const Mig&) = default;
};

// For claims only: while the GPU is in MIG mode, a MIG device of one of these profiles is made when a claim
// that has been allocated it is prepared, and removed after it. The MIG state is otherwise left alone.
struct DynamicMig {
  std::vector<std::string> profiles;  // of whole GPU instances, not empty, without duplicates: "1g.10gb"
  friend bool operator==(const DynamicMig&, const DynamicMig&) = default;
};

// Withheld from Kubernetes: in no resource, no ResourceSlice and no label, and its MIG state is left alone.
struct Exclude {
  friend bool operator==(const Exclude&, const Exclude&) = default;
};

// Which side offers a GPU to Pods: the device plugin, or claims of Dynamic Resource Allocation.
enum class OfferSide { kDevicePlugin, kClaims };

struct PartitionRule {
  GpuSelection devices = AllDevices{};
  std::optional<std::string> model;  // a pattern as in resources.gpus[], for the driver's or the label's form
  std::optional<NodeLabel> node_label;
  std::optional<bool> display;  // whether a display is attached; a GPU of which that is unknown has neither
  std::variant<Whole, TimeSlicing, Mps, Mig, DynamicMig, Exclude> mode;
  std::optional<OfferSide> offer = {};  // as gpulet.dra.enabled says if not set
  std::string position;                 // "file:line:column", for messages; not compared
  friend bool operator==(const PartitionRule& a, const PartitionRule& b) {
    return a.devices == b.devices && a.model == b.model && a.node_label == b.node_label &&
           a.display == b.display && a.mode == b.mode && a.offer == b.offer;
  }
};

// The key of the rule that only claims have: "dynamicMig" or "consumableShares"; empty if it has none.
std::string_view claims_only_key(const PartitionRule& rule);

// The most shares of one GPU that a rule may set.
inline constexpr unsigned kMaxConsumableShares = 1024;
// The greatest index that a rule may name; no driver has more GPUs.
inline constexpr unsigned kMaxGpuIndex = 1023;
// The most clients of one MPS daemon, on the newest GPUs. Source: k8s-device-plugin v0.20.0,
// cmd/mps-control-daemon/mps/device.go.
inline constexpr unsigned kMaxMpsClients = 48;

// Reads `devices`: all, a count of GPUs, or a list. Adds to `problems` what is wrong.
std::optional<GpuSelection> read_gpu_selection(const yaml::Node& node, const std::string& field,
                                               Problems& problems);

// Reads the list. Adds to `problems` what is wrong; the result is then invalid.
std::vector<PartitionRule> read_partition(const yaml::Node& node, Problems& problems);

}  // namespace gpulet::config
