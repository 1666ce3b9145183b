// Runs the hook's work in a child process under a time limit.
//
// An image or a Pod's volume can make any call of the hook wait: a FUSE file system that never answers, a
// dead NFS server. Only a fatal signal ends such a wait, so the limit needs a second process: a handler of
// SIGALRM would never run.
#pragma once

#include <chrono>
#include <functional>

#include "base/result.h"

namespace gpulet::hook {

// A few milliseconds are usual. Below the `timeout` of the generated CDI hook, at which the runtime kills the
// hook and the container does not start (cdi/generate_hooks.cpp).
inline constexpr std::chrono::milliseconds kHookTimeLimit{2'000};

struct WorkerResult {
  enum class End { kExited, kSignalled, kTimedOut };
  End end = End::kExited;
  int value = 0;      // exit status or signal
  int milestone = 0;  // the last one that it reached; 0: none
};

// Forks, runs `work` in the child and waits for it. `work` returns the exit status; it calls its argument
// with a positive number at each milestone. At the limit the child is killed, with what it started if that
// dies with its parent (PR_SET_PDEATHSIG). A child that cannot die (uninterruptible sleep) is left behind.
// The child dies with the caller. A single-threaded program only. Errors: kUnsupported (no pidfd: before
// Linux 5.3), kIo.
Result<WorkerResult> run_supervised(
    std::chrono::milliseconds limit,
    const std::function<int(const std::function<void(int)>& reach_milestone)>& work);

}  // namespace gpulet::hook
