// A program of the host's run among a container's files, which it can read and not change, and where nothing
// but those files is to be seen.
//
// The root's mounts are cloned. In the clone everything is read-only, without devices, set-user-id and
// programs (Linux 5.12), and every procfs is taken out, for its links lead anywhere; none of it is seen by
// the container. The program runs as a process of its own with mount, pid, ipc, uts and net namespaces, that
// clone for its root (pivot_root; chroot on an initramfs, which cannot be pivoted), a small tmpfs over one
// folder to write in, no environment, no descriptor but its output, no capability but to read files of other
// users, no new privileges, a filter of system calls, and limits of time, memory and output. It dies with us.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "hook/rootfs.h"

namespace gpulet::hook {

struct ConfinedProgram {
  int program = -1;                    // a static program; see sealed_copy.h
  std::vector<std::string> arguments;  // the first is its name
  std::string scratch;                 // the folder of the root (no link) that is hidden by what it writes
  std::vector<std::string> hidden;     // more such folders, where the root has them
  std::chrono::milliseconds limit{20'000};
};

struct ConfinedRun {
  std::string output;      // standard output
  std::string complaints;  // the first 4 KiB of standard error
  FileDescriptor scratch;  // the folder that it wrote in, attached nowhere any more
};

inline constexpr std::size_t kMaxConfinedOutput = 4u << 20;
inline constexpr std::size_t kMaxConfinedFile = 32u << 20;

// Errors: kPermissionDenied (we may not make mounts or namespaces: a container in a container, say),
// kUnsupported, kDeadlineExceeded (killed), kFailedPrecondition (it failed or was killed by a signal, with
// what it said), kInvalidArgument (it said more than kMaxConfinedOutput).
Result<ConfinedRun> run_confined(const Rootfs& root, const ConfinedProgram& program);

}  // namespace gpulet::hook
