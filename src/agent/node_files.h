// Takes away the files that an agent has left on its node: those that are known by name, nothing else.
// The folders stay: they are mount points in a container.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::agent {

// As the agent's settings of these names, each as this process sees it; an empty one is passed over.
struct NodeFolders {
  std::string spec_dir = "/var/run/cdi";
  std::string hook_dir = "/var/lib/gpulet";
  std::string state_dir = "/var/lib/gpulet";
  std::string run_dir = "/run/gpulet";
  std::string device_plugin_dir = "/var/lib/kubelet/device-plugins";
};

struct RemovedFiles {
  std::vector<std::string> paths;  // in the order in which they went
  std::vector<Error> errors;       // of files that could not be removed; the others were
};

// CDI specs that are as an agent wrote them, the hook, what it remembers of faults and cordons, its report,
// its socket, and sockets of a device plugin at which nobody listens. Precondition: no agent runs on the
// node. Blocks for the time of a few file operations.
RemovedFiles remove_node_files(const NodeFolders& folders);

}  // namespace gpulet::agent
