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

// The Pod of each process of the sample whose cgroups (`proc`/PID/cgroup) name a Pod that is known.
PodOfProcess pods_of_processes(const Sample& sample, const PodUids& known, const std::string& proc = "/proc");

}  // namespace gpulet::metrics
