// Runs a program of the host on a container's files, in a sandbox that sees nothing else and cannot change
// them.
//
// The root's mounts are cloned. The clone is read-only, without devices, set-user-id and executables (Linux
// 5.12), and every procfs is removed, because its links escape the root. The container does not see the
// clone. The program runs in its own mount, pid, ipc, uts and net namespaces with the clone as its root
// (pivot_root, or chroot on an initramfs), a small tmpfs over one directory for output, no environment, no
// descriptor except its output, only the capability to read files of other users, no new privileges, a system
// call filter, and limits of time, memory and output. It is killed with the hook. The child
// is in confinement_child.cpp.
#pragma once

#include <linux/filter.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "hook/rootfs.h"

namespace gpulet::hook {

struct ConfinedProgram {
  int program = -1;                    // a static program, see sealed_ldconfig()
  std::vector<std::string> arguments;  // argv, program name first
  std::string scratch;                 // the directory of the root (no link) that the output tmpfs covers
  std::vector<std::string> hidden;     // more directories to cover, where they exist
  std::chrono::milliseconds time_limit{1'500};
};

struct ConfinedRun {
  std::string output;        // standard output
  std::string error_output;  // the first 4 KiB of standard error
  FileDescriptor scratch;    // the detached output directory
};

inline constexpr std::size_t kMaxConfinedOutput = 4u << 20;
inline constexpr std::size_t kMaxConfinedFile = 32u << 20;

// Runs the program and waits for it. Errors: kPermissionDenied (mounts or namespaces are not permitted, for
// example in a nested container), kUnsupported, kDeadlineExceeded (killed), kFailedPrecondition (it failed or
// was killed by a signal; with its first line of standard error), kInvalidArgument (more output than
// kMaxConfinedOutput).
Result<ConfinedRun> run_confined(const Rootfs& root, const ConfinedProgram& program);

inline constexpr std::size_t kMaxProgramBytes = 64u << 20;

// Returns a sealed in-memory copy of the host's ldconfig, run by its descriptor, so that the sandbox sees
// neither its path nor the host's file. Copies "<path>.real" if it exists (Ubuntu's ldconfig is a script
// around it), else `path`. It must be a static ELF program, as in every distribution: an interpreter would be
// the container's loader. Errors: kNotFound, kFailedPrecondition (a script, dynamically linked, another
// architecture), kInvalidArgument (larger than kMaxProgramBytes), kUnsupported (no sealed files), kIo.
Result<FileDescriptor> sealed_ldconfig(const std::string& path);

// The sandboxed child process, from fork to exec, with its system call filter.

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
