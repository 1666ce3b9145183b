// Looks at a node below a root: processes, sockets, files and container engines. Only reads. Whatever lies in
// a container's root folder is read inside it, so that none of its links leads out.
//
// Needs to be root to see the variables and files of other users' processes; what cannot be read is said.
#pragma once

#include <string>

#include "base/result.h"
#include "migrate/facts.h"

namespace gpulet::migrate {

// `root`: where the node's "/" is seen. Errors: kNotFound, kPermissionDenied.
Result<Facts> look_at_node(const std::string& root);

}  // namespace gpulet::migrate
