// Removes the files that an agent has left on its node: those known by name, nothing else. The directories
// stay, as they are mount points in a container.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::agent {

// The agent's settings of these names, as paths of this process; empty ones are skipped.
struct NodeDirectories {
  std::string spec_dir = "/var/run/cdi";
  std::string hook_dir = "/var/lib/gpulet";
  std::string state_dir = "/var/lib/gpulet";
  std::string run_dir = "/run/gpulet";
  std::string device_plugin_dir = "/var/lib/kubelet/device-plugins";
};

struct RemovedFiles {
  std::vector<std::string> paths;  // in order of removal
  std::vector<Error> errors;       // of files that could not be removed; the others are
};

// Removes CDI specs that an agent wrote, the hook, persisted faults and cordons, the health report, the
// agent's socket, and device plugin sockets without a listener. Precondition: no agent runs on the node.
// Blocks for a few file operations.
RemovedFiles remove_node_files(const NodeDirectories& directories);

}  // namespace gpulet::agent
