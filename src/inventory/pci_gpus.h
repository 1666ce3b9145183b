// What sysfs says of NVIDIA's GPUs, without the driver: values that NVML does not have, and the GPUs that
// NVML does not see because they are passed through to virtual machines (vfio-pci).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "inventory/snapshot.h"

namespace gpulet::inventory {

// In all functions, `sys_roots` are the directories below which sys/bus/pci/devices is looked for, in order.

// Fills in the NUMA node, the PCI class and the host of a virtual GPU, from gpu.pci.
void read_sysfs_details(const std::vector<std::string>& sys_roots, Gpu& gpu);

// The driver's version in a Snapshot of GPUs that no driver of this node has: as in NVIDIA's feature
// discovery, three unknown numbers.
inline constexpr const char* kNoDriverVersion = "unknown.unknown.unknown";

// The GPUs bound to vfio-pci, by PCI address, with their name, address, class, NUMA node and vGPU host. The
// rest is unknown: they have no UUID, memory or compute capability. Errors: kUnavailable without a PCI bus.
// Source: k8s-device-plugin v0.20.0, internal/resource/sysfs-lib.go.
Result<Snapshot> read_vfio_gpus(const std::vector<std::string>& sys_roots);

// The name of a GPU by its PCI device number: "GH100 [H100 PCIe]" as in the database of PCI IDs, for
// data-centre boards; "PCI device 10de-2204" for others.
std::string pci_gpu_name(std::uint16_t device);

}  // namespace gpulet::inventory
