#include "sim/state/driver_branch.h"

#include <cstdlib>

#include "sim/state/state.h"

namespace gpulet::sim {

unsigned driver_branch(const Machine& machine) {
  return static_cast<unsigned>(std::strtoul(machine.driver.version, nullptr, 10));
}

}  // namespace gpulet::sim
