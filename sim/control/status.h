// The running machine as a person reads it, and as a program does.
#pragma once

#include <string>

#include "sim/state/state.h"

namespace gpulet::sim::control {

// One line for the driver, one for each GPU with its faults.
std::string status_table(const Machine& machine);
// The same and more, as JSON.
std::string status_json(const Machine& machine);

}  // namespace gpulet::sim::control
