// A device as the driver's functions take it. For this room's .cpp files.
#pragma once

#include "nvml/api.h"
#include "nvml/session.h"

namespace gpulet::nvml {

inline nvmlDevice_t raw(Device device) { return static_cast<nvmlDevice_t>(device.raw); }

}  // namespace gpulet::nvml
