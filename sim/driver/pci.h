// A PCI address as NVML writes it.
#pragma once

#include "sim/driver/call.h"

namespace gpulet::sim {

void fill_pci(const PciAddress& address, std::uint32_t device_id, std::uint32_t subsystem_id,
              nvmlPciInfo_t* pci);

}  // namespace gpulet::sim
