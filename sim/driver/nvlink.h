// Counts over links, for the calls and for the field values.
#pragma once

#include "sim/driver/call.h"

namespace gpulet::sim {

std::uint32_t link_count(const Gpu& gpu);
// NVML_ERROR_NOT_SUPPORTED without NVLink, INVALID_ARGUMENT beyond the last link.
nvmlReturn_t find_link(const Gpu& gpu, unsigned int link, const NvLink** found);

}  // namespace gpulet::sim
