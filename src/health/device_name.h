// Which device a person means: an index as nvidia-smi and `gpulet list` show it ("3", "3:1" for a MIG
// device), a UUID, or the beginning of one that fits one device alone. Pure.
#pragma once

#include <string_view>

#include "base/result.h"
#include "health/view.h"

namespace gpulet::health {

// Errors: kNotFound with what there is; kInvalidArgument when it fits several, with which.
Result<const DeviceView*> find_device(const View& view, std::string_view name);
// Whether it is a UUID in full, as the driver says them: "GPU-" or "MIG-" and 36 characters.
bool is_whole_uuid(std::string_view name);

}  // namespace gpulet::health
