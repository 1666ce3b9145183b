// What control daemons have left below an MPS root, once none of them runs: for an uninstall.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::mps {

// Unmounts `<root>/shm` and removes it, the ready file and every resource's folders. Nothing else below the
// root is touched, nor the root itself, which is a mount point in a container. No link is followed:
// containers can write in some of these. Returns what has gone, in order; nothing where nothing was. Blocks
// for a few file operations. Precondition: no daemon and no agent uses the root. Errors: kPermissionDenied
// without CAP_SYS_ADMIN where shm is mounted; kIo. What came before has gone then.
Result<std::vector<std::string>> remove_leftovers(const std::string& root);

}  // namespace gpulet::mps
