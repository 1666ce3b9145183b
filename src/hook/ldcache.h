// The ld cache of a container, made by the host's ldconfig: what nvidia-cdi-hook's update-ldcache does.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "hook/container.h"

namespace gpulet::hook {

struct LdcacheOptions {
  std::string ldconfig_path;         // on the host
  std::vector<std::string> folders;  // of the driver's libraries, in the container
};

Status update_ldcache(const Container& container, const LdcacheOptions& options);

}  // namespace gpulet::hook
