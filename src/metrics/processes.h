// Whose the processes on this node's GPUs are, by the node's own files: no API server is asked.
//
// The driver names processes as the host counts them: the agent must see the host's (hostPID), else none is
// found.
#pragma once

#include <string>

#include "base/result.h"
#include "metrics/attribution.h"
#include "metrics/sample.h"

namespace gpulet::metrics {

// The Pods of this node by UID, from the folders that the kubelet makes for their logs (usually
// /var/log/pods). Errors: as opening the folder.
Result<PodUids> pods_of_logs(const std::string& folder);

// The UIDs of Pods that the cgroups of each process name (cgroups.h), by pid.
using CgroupsOfProcess = std::map<unsigned, std::vector<std::string>>;
// Reads `proc`/PID/cgroup of each process of a GPU and its parts. One that has ended since has none.
CgroupsOfProcess read_cgroups(const GpuSample& gpu, const std::string& proc = "/proc");

// Puts the names of the processes of a GPU and its parts in, by `proc`/PID/comm: never their arguments or
// environment.
void read_names(GpuSample& gpu, const std::string& proc = "/proc");

// Adds the Pod of each process that names one that is known.
void add_pods(const CgroupsOfProcess& cgroups, const PodUids& known, PodOfProcess& pods);

}  // namespace gpulet::metrics
