// `gpulet cleanup`: takes away what agents have left on this node, once none runs here any more, so that an
// uninstall leaves nothing: docs/INSTALL.md says what. The chart runs it on each node as a DaemonSet.
#pragma once

#include <string>

#include "agent/node_files.h"
#include "base/loop.h"

namespace gpulet::cli {

struct CleanupOptions {
  agent::NodeFolders folders;
  std::string kubelet_dir = "/var/lib/kubelet";
  std::string mps_root;                      // empty: no MPS control daemon is looked for
  std::string driver_root = "/driver-root";  // whose programs end those
  std::string limit = "1m";                  // for all of it, the end of the agent included
};

// Waits for the agent's end, ends its MPS control daemons, takes their folders, their mount and its files
// away and what it has written to the Node, where there is a cluster. Each thing that has gone is a line on
// standard output, each that has not one on standard error. May be run again at any time. Exit code: 0 all is
// gone; 1 something is not; 2 for a limit that is none.
int cleanup(const CleanupOptions& options);

// Waits until `daemon_set` ("namespace/name") has a ready Pod on each node that it is for. Needs get on
// daemonsets there. Exit code: 0; 1 with one line that says how many are, at the limit; 2 for what cannot be.
int await_daemon_set(const std::string& daemon_set, const std::string& limit);

// Waits for SIGTERM or SIGINT: what is left of a Pod of a DaemonSet once its work is done. Exit code: 0.
int idle();

}  // namespace gpulet::cli
