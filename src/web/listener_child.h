// Gives up for good every right that the listener child does not need: user, groups, capabilities, the view
// of the file system, further descriptors and processes, and all system calls but those that serve an open
// socket.
#pragma once

#include <sys/types.h>

#include "base/result.h"

namespace gpulet::web {

// The child's user and group when the agent is root: its own, so that no other unprivileged process may
// signal it.
inline constexpr uid_t kListenerUser = 65'533;

// From here on: no privilege can be gained, no capability is held, the file system is empty where the
// kernel lets us have one of our own, at most `descriptors` are open at a time, and a system call outside
// the list kills the process. Dies with `parent`. A process that is not root keeps its user. Errors:
// whatever the kernel refuses, except the empty file system, which is done without (nothing can be opened
// anyway).
Status enter_sandbox(pid_t parent, unsigned descriptors);

}  // namespace gpulet::web
