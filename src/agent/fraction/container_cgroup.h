// The cgroup v2 directory of a container, to which the driver's memory limits belong, and its end.
//
// A container in a cgroup namespace of its own sees other cgroups as "/../../…": then the path is the one
// that the runtime reports, which must end in what the kernel shows here. On a host with both versions of
// cgroups, v2 is at /sys/fs/cgroup/unified. Source: cgroups(7), cgroup_namespaces(7), cgroup-v2.rst
// "cgroup.events".
#pragma once

#include <functional>
#include <string>

#include "base/loop.h"
#include "base/result.h"
#include "metrics/pods.h"

namespace gpulet::agent {

struct ContainerCgroup {
  std::string directory;     // "/sys/fs/cgroup/kubepods.slice/…/cri-containerd-4f1c….scope"
  metrics::PodCgroup names;  // both are set
  std::string pod{};         // directory of the Pod's cgroup above it; empty: the Pod has none
};

struct CgroupRoots {
  std::string proc = "/proc";
  std::string mount = "/sys/fs/cgroup";
};

// The cgroup of the container that process `pid` is in, not one that the container may have made below it.
// `runtime_path`: of the process, as the runtime sees it. Two or three file operations.
// Errors: kNotFound: no such process, or its cgroup cannot be seen here; kUnsupported without cgroup v2;
// kFailedPrecondition for a process of no Pod's container; kPermissionDenied where the runtime and the kernel
// name different cgroups.
Result<ContainerCgroup> find_container_cgroup(unsigned pid, const std::string& runtime_path,
                                              const CgroupRoots& roots = {});

// Whether a process is in the cgroup or below it; false where it is gone.
bool has_processes(const std::string& cgroup_directory);

// Calls `ended` from the loop when has_processes() has become false: the last process has ended, and the
// runtime has not removed the directory yet, or just did. May be called more than once. Errors: those of
// watch_events().
Result<Subscription> watch_cgroup_end(Loop& loop, const std::string& cgroup_directory,
                                      std::function<void()> ended);

}  // namespace gpulet::agent
