// The processes of containers on the host: reads their cgroups, and kills them. Needs the host's pids
// (hostPID); to kill, also the capability KILL where a process has another user.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "metrics/pods.h"

namespace gpulet::agent {

// Whether the processes of the node can be seen: not where this process, or the sandbox of its Pod, is the
// first of its PID namespace. A node that is itself a container counts as one. `own_pid`: of this process.
bool sees_host_processes(const std::string& proc = "/proc", unsigned own_pid = 0);

// The cgroups of Pods that a process is in; empty for one of no Pod, or that has ended, or whose file cannot
// be read.
std::vector<metrics::PodCgroup> read_pod_cgroups(unsigned pid, const std::string& proc = "/proc");

// Sends SIGKILL to a process whose cgroups contain `expected`: by a descriptor that was opened before they
// were read, so that no other process of the same number is hit. Errors: kNotFound where it has ended or has
// other cgroups; kPermissionDenied.
Status kill_container_process(unsigned pid, const metrics::PodCgroup& expected,
                              const std::string& proc = "/proc");

}  // namespace gpulet::agent
