// What the driver reports about a node's GPUs, as one immutable value. Every library above reads it and none
// asks the driver. inventory/snapshot_reader.h makes one; health/ fills in the judgements; the agent
// publishes it by one atomic pointer.
//
// A GPU that cannot be read is in it all the same, with `unreadable` set and whatever was learned of it
// before: the others are whole.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace gpulet::inventory {

// A PCI address: "00000000:1B:00.0" in NVML's long form, "0000:1b:00.0" in sysfs.
struct PciAddress {
  std::uint32_t domain = 0;
  std::uint32_t bus = 0;
  std::uint32_t device = 0;
  std::uint32_t function = 0;
  std::string nvml_text() const;   // "00000000:1B:00.0"
  std::string sysfs_text() const;  // "0000:1b:00.0"
  // Either form, any case. kInvalidArgument otherwise.
  static Result<PciAddress> from_text(const std::string& text);
  friend auto operator<=>(const PciAddress&, const PciAddress&) = default;
};

// How two GPUs reach each other over PCIe, nearest last. Names as `nvidia-smi topo -m` prints them.
// Source: nvmlGpuTopologyLevel_t.
enum class PcieDistance {
  kUnknown,
  kSystem,      // SYS:  across CPU sockets
  kNode,        // NODE: across host bridges of one NUMA node
  kHostBridge,  // PHB:  through one host bridge
  kMultiple,    // PXB:  several PCIe switches
  kSingle,      // PIX:  one PCIe switch
  kInternal,    // on one board
};

enum class NvLinkRemote { kGpu, kSwitch, kOther };
// One active NVLink of a GPU. `remote` is the PCI address of the other end (of the GPU, or of the NVSwitch).
struct NvLink {
  unsigned index = 0;
  NvLinkRemote kind = NvLinkRemote::kOther;
  PciAddress remote;
  friend bool operator==(const NvLink&, const NvLink&) = default;
};

// NVLink fabric (NVSwitch) membership. Present only when registration has completed with success.
// Source: nvmlDeviceGetGpuFabricInfoV; the label nvidia.com/gpu.clique is "<cluster_uuid>.<clique_id>".
struct Fabric {
  std::string cluster_uuid;
  std::uint32_t clique_id = 0;
  friend bool operator==(const Fabric&, const Fabric&) = default;
};

// Of a virtual GPU: what the hypervisor's driver says of itself (inventory/pci_config_bytes.h).
struct VgpuHost {
  std::string driver_version;  // "460.16"
  std::string driver_branch;   // "r460_00"
  friend auto operator<=>(const VgpuHost&, const VgpuHost&) = default;
};

// Why a device is not fit for use; none when it is. Set by health/.
struct Health {
  bool healthy = true;
  std::string reason;  // one line, empty when healthy: "XID 79: GPU has fallen off the bus"
  friend bool operator==(const Health&, const Health&) = default;
};

// One MIG device: a compute instance inside a GPU instance.
struct MigDevice {
  unsigned index = 0;         // as NVML counts below its GPU: nvidia-smi's "gpu:index"
  DeviceUuid uuid;            // "MIG-…"
  std::string profile;        // "1g.10gb", "1g.10gb+me", "1c.2g.20gb"
  unsigned gpu_instance = 0;  // GI id
  unsigned compute_instance = 0;
  unsigned gpu_slices = 0;      // G of the profile
  unsigned compute_slices = 0;  // C of the profile; C < G for a share of a GPU instance
  Bytes memory;
  std::optional<unsigned> gpu_instance_profile;  // the id; without it the placement is unknown too
  unsigned placement_start = 0;                  // memory slices, as nvmlGpuInstancePlacement_t
  unsigned placement_size = 0;
  unsigned multiprocessors = 0;
  unsigned copy_engines = 0, decoders = 0, encoders = 0, jpegs = 0, ofas = 0;
  Health health;
  friend bool operator==(const MigDevice&, const MigDevice&) = default;
};

// Values of a GPU that the driver may not return for a while, or never. Only its handle, UUID and PCI address
// are needed to offer it.
enum class GpuValue {
  kModel,
  kBrand,
  kSerial,
  kMinor,
  kCompute,
  kMemory,
  kBandwidth,
  kMig,
  kMigAttributes,
  kNvLinks,
  kFabric,
  kDisplay
};

struct Gpu {
  unsigned index = 0;  // as NVML counts
  DeviceUuid uuid;
  std::optional<Error> unreadable;  // why the driver could not be asked about it
  // Why the driver returned no such value: the member has that of the previous snapshot, or its default.
  std::map<GpuValue, Error> not_read{};
  Health health;
  // Why a rule withholds it from Kubernetes: "is excluded by the rule at x.yaml:3:5"; set by the agent.
  std::string excluded{};

  std::string model;         // "NVIDIA H100 80GB HBM3"
  std::string brand;         // "NVIDIA", "Tesla", …
  std::string architecture;  // "hopper", as the label nvidia.com/gpu.family
  unsigned compute_major = 0, compute_minor = 0;
  Bytes memory;                        // total framebuffer
  std::uint64_t memory_bandwidth = 0;  // bytes a second, at the greatest memory clock; 0 when unknown
  unsigned minor = 0;                  // N of /dev/nvidiaN
  PciAddress pci;
  std::uint32_t pci_device_id = 0;  // device<<16 | vendor, as nvmlPciInfo_t
  std::uint32_t pci_subsystem_id = 0;
  std::uint32_t pci_class = 0;  // as sysfs: 0x030200; 0 when unknown
  std::optional<VgpuHost> vgpu;
  bool vgpu_known = false;  // whether a GPU without `vgpu` is certainly not virtual
  std::string serial;
  std::optional<int> numa_node;  // absent when the kernel says -1 or nothing

  // Whether a screen is connected or a display initialised; absent where the driver reports neither.
  std::optional<bool> display;

  bool mig_capable = false;
  bool mig_enabled = false;            // the mode in force
  std::optional<bool> mig_pending;     // the mode after the next reset, where it differs
  std::vector<MigDevice> mig_devices;  // by index

  std::vector<NvLink> nvlinks;  // active ones, by index
  std::optional<Fabric> fabric;
};

struct DriverInfo {
  std::string version;        // "570.124.06"
  unsigned cuda_version = 0;  // major*1000 + minor*10, as nvmlSystemGetCudaDriverVersion
  // Whether it can limit the memory of a cgroup on a GPU without MIG, and if not, why: one line.
  bool has_memory_limits = false;
  std::string why_no_memory_limits{};
  // Whether the processes that it lists can be found: not from a Pod without hostPID.
  bool has_host_pids = true;
};

struct Snapshot {
  std::uint64_t generation = 0;  // grows with every new snapshot of one driver object
  DriverInfo driver;
  std::vector<Gpu> gpus;  // by index
  // gpus.size() squared, row by row: pcie[a * n + b]; kInternal on the diagonal.
  std::vector<PcieDistance> pcie;

  const Gpu* find(const DeviceUuid& uuid) const;
  PcieDistance pcie_between(std::size_t a, std::size_t b) const { return pcie[a * gpus.size() + b]; }
};
using SnapshotPtr = std::shared_ptr<const Snapshot>;

}  // namespace gpulet::inventory
