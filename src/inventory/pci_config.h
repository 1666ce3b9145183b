// What a GPU's folder in sysfs says of it: its PCI class, and, in a virtual machine, the driver of the
// hypervisor. Pure. Source: PCI Local Bus 3.0, 6.1 and 6.7 (the list of capabilities); facts of
// k8s-device-plugin v0.20.0, internal/vgpu: NVIDIA's virtual GPUs have a vendor's capability "VF" whose
// record 0 names the host's driver and its branch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "inventory/snapshot.h"

namespace gpulet::inventory {

// Of the file "class": "0x030200\n" → 0x030200; 0 for anything else.
std::uint32_t pci_class(std::string_view text);

// Of the file "config": the configuration space. nullopt for a GPU that is none of a hypervisor's, for a
// space that was not given whole (the kernel gives 64 bytes to who has not CAP_SYS_ADMIN), and for one that
// is not well-formed.
std::optional<VgpuHost> vgpu_host(std::string_view config);

}  // namespace gpulet::inventory
