// What `gpulet health` prints of a View: a table of all devices, or all that is known of one. Pure.
#pragma once

#include <optional>
#include <string>

#include "base/loop.h"
#include "health/view.h"

namespace gpulet::cli {

// The view with every text as a screen may have it: control characters, which a driver's or a file's text may
// hold, are '?'.
health::View printable(health::View view);

// A row a device, then a line for each that is not well: what to do next.
std::string health_table(const health::View& view);

// All of one device, and of a GPU a table of its MIG devices. `now`: ages are said too.
std::string health_details(const health::View& view, const health::DeviceView& device,
                           std::optional<WallTime> now);

}  // namespace gpulet::cli
