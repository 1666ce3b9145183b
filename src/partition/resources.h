// Plans the resources of a node: which devices the kubelet is offered under which names, from a Snapshot and
// the Config. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "config/config.h"
#include "inventory/snapshot.h"
#include "partition/offer_switch.h"
#include "placement/chooser.h"

namespace gpulet::partition {

// A unit of allocation: a GPU, a MIG device, or a share of either.
struct Device {
  DeviceId id;
  std::size_t gpu = 0;              // index into Snapshot::gpus
  std::optional<std::size_t> mig;   // index into that GPU's mig_devices
  std::optional<unsigned> replica;  // n of "<uuid>::<n>"
  // The share's limits if MPS shares differ by rule; absent: the daemon's default limits.
  std::optional<config::MpsShare> share;
  bool has_memory_limit = true;  // of MPS
  std::optional<int> numa_node;
  inventory::Health health;

  bool is_shared() const { return mig.has_value() || replica.has_value(); }
  friend bool operator==(const Device&, const Device&) = default;
};

struct Resource {
  ResourceName name;
  config::SharingStrategy sharing = config::SharingStrategy::kNone;
  unsigned replicas = 1;  // shares of one device in this resource
  bool fail_requests_greater_than_one = false;
  placement::SharesOn shares_on = placement::SharesOn::kAnyGpu;  // the shares of a container
  // With MPS: the name of the control daemon's directory below the MPS root ("nvidia.com/gpu"), which shares
  // of several sizes of one rule have in common. Empty without MPS.
  std::string mps_daemon;
  std::vector<Device> devices;  // by (GPU, MIG device, replica); stable across restarts and unrelated changes
  bool is_mps_by_rule = false;  // shared by MPS as a partition rule says, not `sharing.mps`
  bool has_sm_partitions = false;  // each share has SMs of its own
  friend bool operator==(const Resource&, const Resource&) = default;
};

// The reason why a device is not offered, for an event and a log line: "GPU 3 (GPU-…) has MIG on and no
// instance".
struct Note {
  std::string message;
  friend bool operator==(const Note&, const Note&) = default;
};

struct Plan {
  std::vector<Resource> resources;  // by name; none without devices
  std::vector<Note> notes;
  std::vector<Note> remarks;  // GPUs that a rule excludes, and rules that exclude none: for a log line
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Facts of the node beside its GPUs.
struct NodeFacts {
  std::map<std::string, std::string> labels;  // of the Node; empty outside a cluster
  // GPUs that are not offered for now, with the reason ("is being partitioned as all-balanced"). Withdraw a
  // GPU here before changing it.
  std::map<DeviceUuid, std::string> withdrawn;
  GpuOffers offers = {};  // as OfferSwitch has it
};

// Each GPU follows the first rule of gpulet.partition that selects it, else `flags` and `sharing`. Every
// offered device is in exactly one resource. Devices that do not fit their strategy or rule are left out
// with a Note; the others are offered (NVIDIA's plugin exits). A resource has one meaning: devices of a
// rule whose resource already has devices with another mode, from GPUs without a rule or an earlier rule,
// are left out with a Note. An excluded GPU is in no resource, nor is one of claims; one that leaves the
// device plugin is unhealthy. An unreadable GPU with a known UUID stays in its resource as unhealthy. A GPU
// whose MIG state differs from its rule is left out with a Note until it matches (desired_mig).
Plan plan_resources(const inventory::Snapshot& snapshot, const config::Config& config,
                    const NodeFacts& facts = {});

// Names of resources. Source: k8s-device-plugin v0.20.0, api/config/v1/resources.go and internal/rm/rm.go.

// Whether the whole `text` matches `pattern`, in which '*' stands for any text.
// Cost: O(pattern × text).
bool matches_pattern(std::string_view pattern, std::string_view text);

// The name of the first pattern that matches the model; default nvidia.com/gpu.
ResourceName gpu_resource_name(const inventory::Gpu& gpu, const config::Config& config);

// The name of the first pattern that matches the profile. Otherwise: single: nvidia.com/gpu; mixed:
// nvidia.com/mig-<profile> with '.' for '+'; nullopt for a part of a GPU instance ("1c.2g.20gb").
// Precondition: the strategy is not none.
std::optional<ResourceName> mig_resource_name(const inventory::MigDevice& device,
                                              const config::Config& config, config::MigStrategy strategy);

// Devices before sharing.

// "GPU 3 (GPU-…)", "MIG device 3:1 (MIG-…)": for notes.
std::string display_name(const inventory::Gpu& gpu);
std::string display_name(const inventory::Gpu& gpu, const inventory::MigDevice& mig);

// Whether the GPU was never read: its model and MIG state are unknown.
bool is_unknown(const inventory::Gpu& gpu);

Device make_gpu_device(const inventory::Snapshot& snapshot, std::size_t gpu);
Device make_mig_device(const inventory::Snapshot& snapshot, std::size_t gpu, std::size_t mig);
// The share "<uuid>::<n>" of the device.
Device make_replica(const Device& device, unsigned n);

// Sorts by (GPU, MIG device, replica).
void sort_devices(std::vector<Device>& devices);

// Time-slicing and MPS.

// Devices by their unshared resource name, each list by (GPU, MIG device).
using Unshared = std::map<ResourceName, std::vector<Device>>;

// The most clients that one MPS daemon serves on a GPU: 48, or 16 below compute capability 7.5.
// Source: k8s-device-plugin v0.20.0, cmd/mps-control-daemon/mps/device.go.
unsigned max_mps_replicas(const inventory::Gpu& gpu);

// On a MIG device: 48, scaled down to the size of its compute instance in sevenths of a GPU (a GPU with four
// slices could serve more). Source: NVIDIA's MIG User Guide, "CUDA Concurrency".
unsigned max_mps_replicas(const inventory::MigDevice& device);

// Replaces shared devices by their replicas "<uuid>::<n>", in the resource of `rename`. The first entry of
// config.sharing that selects a device applies. Devices that cannot be shared stay unshared, with a Note.
std::vector<Resource> share_devices(const inventory::Snapshot& snapshot, const config::Config& config,
                                    const Unshared& unshared, std::vector<Note>& notes);

}  // namespace gpulet::partition
