// Which system calls the host's ldconfig may make in a container: those that it needs to look at files and to
// write one. All else (mounts, sockets, tracing, handles, namespaces, new processes) is refused with EPERM.
#pragma once

#include <linux/filter.h>

#include <vector>

#include "base/result.h"

namespace gpulet::hook {

class SyscallFilter {
 public:
  SyscallFilter();

  // For the calling thread, for good, and for what it executes; asks for no new privileges first. What
  // flushes to the disk is answered "done" without doing it: the file is a copy that is thrown away. execveat
  // alone starts a program. Takes no memory. Errors: kUnsupported (a kernel without seccomp),
  // kPermissionDenied.
  Status install();

 private:
  std::vector<sock_filter> statements_;
};

}  // namespace gpulet::hook
