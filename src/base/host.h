// The machine that this process runs on.
#pragma once

#include <string>

namespace gpulet {

// Its name as the kernel has it, in a container that of the container; empty if it is unknown. Source:
// gethostname(2).
std::string host_name();

}  // namespace gpulet
