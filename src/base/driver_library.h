// Where a library of the driver lies below a driver root (base/driver_root.h): its own directories, those of
// every distribution, then what the root's loader caches name.
#pragma once

#include <string>
#include <vector>

namespace gpulet {

// The path of `name` ("libcuda.so.1") below `driver_root` as this process sees it, links resolved inside the
// root; empty if there is none. `directories`: searched first; of the host, with or without the root.
std::string find_driver_library(const std::string& driver_root, const std::vector<std::string>& directories,
                                const std::string& name);

}  // namespace gpulet
