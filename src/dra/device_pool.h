// The devices that a node offers by claims, from its inventory and their health: whole GPUs, and the MIG
// devices of GPUs that are partitioned, under the names, attributes and capacities of NVIDIA's DRA driver,
// so that its DeviceClasses and users' selectors work unchanged.
//
// Source: kubernetes-sigs/dra-driver-nvidia-gpu; facts of Kubernetes 1.36 about ResourceSlices.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "config/partition_rules.h"
#include "dra/device.h"
#include "dra/opaque_config.h"
#include "dra/partition.h"
#include "inventory/snapshot.h"
#include "mig/layout.h"

namespace gpulet::dra {

inline constexpr std::string_view kDriverName = "gpu.nvidia.com";

// Of the domain resource.kubernetes.io.
inline constexpr const char* kPciBusIdAttribute = "resource.kubernetes.io/pciBusID";
inline constexpr const char* kPcieRootAttribute = "resource.kubernetes.io/pcieRoot";
inline constexpr const char* kNumaNodeAttribute = "resource.kubernetes.io/numaNode";

// A GPU whose MIG devices are made for claims.
struct DynamicGpu {
  std::vector<std::string> allowed = {};    // names of profiles
  std::vector<mig::Profile> profiles = {};  // all that the GPU has; empty: not known yet
  std::set<Partition> made = {};            // for claims, whether they are there yet or not
  std::set<DeviceUuid> removed = {};        // MIG devices that are gone, though the snapshot may have them
  std::set<Partition> held = {};            // of `made`: of ended claims, and cannot be removed now
};

struct PoolInput {
  inventory::SnapshotPtr snapshot;
  // health_taints by UUID of a GPU or a MIG device. A GPU's taints apply to its MIG devices too.
  std::map<DeviceUuid, std::vector<DeviceTaint>> taints = {};
  // GPUs that are not offered, by UUID, with the reason: "is offered by the device plugin".
  std::map<DeviceUuid, std::string> withdrawn = {};
  // "pci0000:00" by address, as sysfs reports.
  std::map<inventory::PciAddress, std::string> pcie_roots = {};
  // By UUID. While its MIG mode is on, every allowed profile at every placement is a device.
  std::map<DeviceUuid, DynamicGpu> dynamic = {};
  // By UUID. While its MIG mode is off, several claims may have it.
  std::map<DeviceUuid, config::ConsumableShares> shares = {};
};

// One offered device, and which one it is on the node.
struct PoolDevice {
  Device device;
  DeviceType type = DeviceType::kGpu;
  DeviceUuid uuid;      // of the GPU, or of the MIG device; empty for a partition that is not there
  DeviceUuid gpu_uuid;  // of the GPU in either case
  std::optional<Partition> partition = {};  // of a MIG device that is made for a claim
  friend bool operator==(const PoolDevice&, const PoolDevice&) = default;
};

struct DevicePool {
  std::vector<PoolDevice> devices;  // by PCI address, then by placement; dra/gpu_groups.h arranges them
  std::vector<CounterSet> counter_sets = {};  // one for each GPU with partitions, in the devices' order
  // By the name of a partition that is not offered, why: "2g.20gb at 0-1 of another program is in its place".
  std::map<std::string, std::string> taken = {};
  std::vector<std::string> notes;  // why a device is left out: "GPU-…: …", in the same order

  // nullptr where there is no device of that name.
  const PoolDevice* find(std::string_view name) const;
};

// Every name is a DNS label and occurs once; each device of a type has the same attributes, except numaNode
// and pcieRoot where the host does not report them. Left out, with a note: an excluded GPU, a GPU without a
// UUID or with an unknown minor, one that is partitioned and has no MIG device, a compute instance that is
// only a part of its GPU instance, and a MIG device whose placement the driver does not report.
//
// A GPU in shares has the capacities and policies of NVIDIA's DRA driver; one in shares of memory whose
// memory is unknown is offered to one claim, with a note.
//
// Of a dynamic GPU, the MIG devices of other programs take their part of the counters. One that is exactly an
// allowed partition is offered without counters; partitions that overlap another program's are left out. The
// placements that overlap the fewest others come first. The partitions that cannot be made beside those that
// are held have the taint kInstanceHeldTaint. Pure.
DevicePool make_device_pool(const PoolInput& input);

// The devices of these GPUs, and the counter sets that they consume.
DevicePool select_devices(const DevicePool& pool,
                          const std::function<bool(const DeviceUuid& gpu)>& is_selected);

// Whether a device of this GPU can be named: its UUID and the number of its device node are known.
bool has_device_name(const inventory::Gpu& gpu);
// "gpu-2".
std::string gpu_device_name(const inventory::Gpu& gpu);
// "gpu-2-counter-set".
std::string counter_set_name(const inventory::Gpu& gpu);
// "gpu-2-mig-1g24gb-19-0": profile, GPU instance profile id, first memory slice. Precondition: its GPU
// instance profile is known.
std::string mig_device_name(const inventory::Gpu& gpu, const inventory::MigDevice& mig);

// The PCIe root complex of a GPU from the target of its link in /sys/bus/pci/devices:
// "../../../devices/pci0000:1a/0000:1b:00.0" → "pci0000:1a". nullopt for another form.
std::optional<std::string> pcie_root_of_link(std::string_view link);

}  // namespace gpulet::dra
