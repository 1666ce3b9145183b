// Which rights at the driver and the kernel the agent lacks, and what that switches off; everything else
// continues, as without a permission at the API server (agent/publish/rbac_check.h). From evidence:
// the capabilities in effect, whether the node of a MIG capability can be opened, the driver's return codes.
// Nodes that cannot be created are reported by DeviceNodeCreator (agent/resources/device_nodes.h), when one
// is needed.
//
// Sources: NVIDIA's MIG user guide, "Device Nodes and Capabilities" (CAP_SYS_ADMIN implies every capability;
// else access to /dev/nvidia-caps/nvidia-capN); nvml.h, nvmlDeviceGetMemoryInfo, nvmlEventSetWait_v2 and
// nvmlDeviceSetMigMode; the open kernel modules (osIsAdministrator, _gpuFilterSubDeviceEventInfo); Linux
// drivers/pci/pci-sysfs.c (64 bytes of "config" without CAP_SYS_ADMIN).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// Of the Event about a missing right.
inline constexpr const char* kMissingRightReason = "MissingDriverRight";

struct RightsEvidence {
  bool sys_admin = false;
  // Why the nodes of the MIG capabilities cannot be opened: "/dev/nvidia-caps/nvidia-cap2: Operation not
  // permitted". nullopt: they can, or which nodes they are is not known.
  std::optional<std::string> monitor_refusal{}, config_refusal{};
  // The driver's answer about memory of a GPU: "nvmlDeviceGetMemoryInfo returned NO_PERMISSION"; else empty.
  std::string memory_refusal{};
  // A GPU's PCI configuration space of which the kernel gives only the header, in what may be a virtual
  // machine: "/sys/bus/pci/devices/0000:1b:00.0/config"; else empty.
  std::string cut_pci_config{};
  std::string reset_program{};  // why there is no nvidia-smi, where GPUs are to be reset; else empty
};

enum class DriverRight { kMigMonitor, kMigConfig, kMigMode, kPciConfig, kReset, kResetProgram };

struct MissingRight {
  DriverRight right = DriverRight::kMigMonitor;
  std::string needed;       // "CAP_SYS_ADMIN"
  std::string evidence;     // "no CAP_SYS_ADMIN; …"
  std::string consequence;  // "MIG layouts are not applied"
  friend bool operator==(const MissingRight&, const MissingRight&) = default;

  // "no CAP_SYS_ADMIN: MIG layouts are not applied; it needs …"
  std::string message() const;
};

// Those that this snapshot and config have a use for, in the order of DriverRight. `changes_mig`: a MIG
// layout is asked for (mig_targets). Pure.
std::vector<MissingRight> missing_rights(const RightsEvidence& evidence, const config::Config& config,
                                         const inventory::Snapshot& snapshot, bool changes_mig);

// Blocks for a few file operations, for none of them with CAP_SYS_ADMIN.
RightsEvidence collect_rights_evidence(const config::Config& config, const inventory::Snapshot& snapshot);

}  // namespace gpulet::agent
