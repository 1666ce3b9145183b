// The sandboxed child process of confinement.h, from fork to exec, with its system call filter.
#pragma once

#include <linux/filter.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::hook {

// Inputs of the child, prepared by the parent. It owns none of the descriptors.
struct ChildPlan {
  int tree = -1;                    // the detached clone of the root's mounts
  int scratch = -1;                 // a detached tmpfs
  std::string scratch_name;         // "proc": its mount point in the tree
  std::vector<std::string> hidden;  // absolute: more mount points, where the directory exists
  int program = -1;
  std::vector<std::string> arguments;
  int null = -1;  // its standard input
  int output = -1;
  int error_output = -1;
  int failure = -1;  // ChildFailure is written here if the program cannot be started
};

struct ChildFailure {
  char what[96];  // ends in NUL
  int error_number;
};

// Runs in the only process of new namespaces. Does not return.
[[noreturn]] void run_child(const ChildPlan& plan);

// The system calls that the host's ldconfig may use in the sandbox: those that read files and write one. All
// others (mounts, sockets, tracing, handles, namespaces, new processes) fail with EPERM.
class SyscallFilter {
 public:
  SyscallFilter();

  // Installs the filter permanently for the calling thread and what it executes, after setting
  // no-new-privileges. Flushes to disk succeed without effect, because the file is a temporary copy. Only
  // execveat starts a program. Does not allocate. Errors: kUnsupported (a kernel without seccomp),
  // kPermissionDenied.
  Status install();

 private:
  std::vector<sock_filter> statements_;
};

}  // namespace gpulet::hook
