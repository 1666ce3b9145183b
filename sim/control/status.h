// The status of a running machine as text and as JSON.
#pragma once

#include <string>

#include "sim/state/state.h"

namespace gpulet::sim::control {

// One line for the driver, one for each GPU with its faults.
std::string status_table(const Machine& machine);
// With more fields than the table.
std::string status_json(const Machine& machine);

}  // namespace gpulet::sim::control
