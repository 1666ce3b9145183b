// What runs from a driver root's files: the MPS control daemons, which outlive whoever started them.
#pragma once

#include <string>

namespace gpulet::sim {

// Kills every process whose program lies below `root`, as this process may: as when a driver package is
// purged.
void end_programs(const std::string& root);

}  // namespace gpulet::sim
