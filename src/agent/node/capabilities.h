// The Linux capabilities of the agent's process. A container that must be privileged to reach the driver's
// device nodes has all of them: Kubernetes' `privileged: true` overrides `capabilities.drop` in containerd
// and CRI-O. The agent gives up those that its config does not need, for itself and for every program it
// starts.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "base/result.h"

namespace gpulet::agent {

// The number of a capability in <linux/capability.h> by its name in Kubernetes: "SYS_ADMIN", or
// "CAP_SYS_ADMIN". Errors: kInvalidArgument for a name that this program does not know.
Result<int> parse_capability(std::string_view name);
// "SETUID,SETGID"; spaces and empty entries are ignored. Errors: those of parse_capability.
Result<std::set<int>> parse_capabilities(std::string_view list);

// Gives up every capability of this thread that is not in `kept`, for good: threads and programs that it
// starts later cannot get them back. Capabilities that the thread lacks already are not added. Sets
// no_new_privs. To be called before other threads exist. Errors: kInternal and those of errno_error.
Status keep_capabilities(const std::set<int>& kept);

}  // namespace gpulet::agent
