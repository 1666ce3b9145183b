// The checks for "GPU not found" (from the slot to a responding driver) and "GPU broken" (faults of GPUs and
// of their links). Pure: facts in, a result out. checks.cpp has their table.
#pragma once

#include "doctor/checks.h"

namespace gpulet::doctor {

// GPUs on the PCI bus, and whether they are assigned to virtual machines.
CheckResult check_pci_bus(const Facts& facts);
// Nouveau, bound to a GPU or loaded.
CheckResult check_nouveau(const Facts& facts);
// The loaded kernel module.
CheckResult check_driver_module(const Facts& facts);
// libnvidia-ml below the driver root.
CheckResult check_driver_library(const Facts& facts);
// Versions of the libraries and of the module.
CheckResult check_driver_version(const Facts& facts);
// Presence and major numbers of the device nodes.
CheckResult check_device_nodes(const Facts& facts);
// Permissions of the device nodes, and their links in /dev/char.
CheckResult check_device_permissions(const Facts& facts);
// Whether NVML responds with all GPUs that are bound to the driver.
CheckResult check_driver_response(const Facts& facts);

// The health of each device according to the agent, else according to NVML.
CheckResult check_gpu_health(const Facts& facts);
// MIG mode and instances, and the node label mig.config.state.
CheckResult check_mig(const Facts& facts);
// Whether each MPS control daemon responds.
CheckResult check_mps_daemons(const Facts& facts);
// GPUs throttled by heat or power.
CheckResult check_throttling(const Facts& facts);
// ACS and the IOMMU between GPUs.
CheckResult check_iommu(const Facts& facts);
// PCIe lanes in use.
CheckResult check_pcie_width(const Facts& facts);
// The NVLink fabric and its manager.
CheckResult check_nvlink_fabric(const Facts& facts);

}  // namespace gpulet::doctor
