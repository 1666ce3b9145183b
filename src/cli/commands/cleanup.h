// `gpulet cleanup`: removes what agents left on this node, once none runs there: docs/INSTALL.md lists it.
// The chart runs it on each node as a DaemonSet.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace gpulet::cli {

// Removes the files that an agent has left on its node: those known by name, nothing else. The directories
// stay, as they are mount points in a container.

// The agent's settings of these names, as paths of this process; empty ones are skipped.
struct NodeDirectories {
  std::string spec_dir = "/var/run/cdi";
  std::string hook_dir = "/var/lib/gpulet";
  std::string state_dir = "/var/lib/gpulet";
  std::string run_dir = "/run/gpulet";
  std::string device_plugin_dir = "/var/lib/kubelet/device-plugins";
  std::string plugins_dir = "/var/lib/kubelet/plugins";  // of claims
  std::string plugin_registry_dir = "/var/lib/kubelet/plugins_registry";
};

struct RemovedFiles {
  std::vector<std::string> paths;  // in order of removal
  std::vector<Error> errors;       // of files that could not be removed; the others are
};

// Removes CDI specs that an agent wrote, the hook, persisted faults and cordons, the health report, the
// agent's sockets, the records of memory limits, and sockets of device plugins and claims without a listener.
// Precondition: no agent runs on the node. Blocks for a few file operations.
RemovedFiles remove_node_files(const NodeDirectories& directories);

struct CleanupOptions {
  NodeDirectories directories;
  std::string kubelet_dir = "/var/lib/kubelet";
  std::string mps_root;                      // empty: do not look for MPS control daemons
  std::string driver_root = "/driver-root";  // whose programs stop them
  bool gpu_node = true;                      // whether agents published the node as a GpuNode
  std::string limit = "1m";                  // of the whole command, with waiting for the agent
};

// Waits for the agent to exit, stops its MPS control daemons, removes their directories and mount, the
// agent's files and, in a cluster, what it wrote to the Node. Prints one line of standard output for each
// removal and one line of standard error for each failure. Can be repeated. Exit code: 0; 1 if something
// remains; 2 for an invalid limit.
int run_cleanup(const CleanupOptions& options);

// Waits until `daemon_set` ("namespace/name") has a ready Pod on each of its nodes. Needs permission to get
// it. Exit code: 0; 1 at the limit, after one line with the progress; 2 for invalid arguments.
int wait_for_daemon_set(const std::string& daemon_set, const std::string& limit);

// Waits for SIGTERM or SIGINT, as the container of a DaemonSet must once its work is done. Exit code: 0.
int wait_for_termination();

}  // namespace gpulet::cli
