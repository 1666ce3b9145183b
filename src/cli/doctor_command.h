// `gpulet doctor`: what keeps a Pod from the GPUs of this node, and what to do about it. Needs no agent and
// no API server, and says what it cannot tell without them.
#pragma once

#include <string>

namespace gpulet::cli {

struct DoctorOptions {
  std::string output = "text";  // or "json"
  std::string bundle;           // a file for the support archive, .tar, .tar.gz or .tgz; empty: none
  std::string host_root = "/";  // where the host's / is seen
  std::string driver_root;      // empty: the host's
  std::string kubelet_dir;      // empty: /var/lib/kubelet of the host
  std::string socket, url;      // the agent's; empty: /run/gpulet/agent.sock of the host
  std::string config_file;      // the agent's, for when it does not run
  std::string kubeconfig, node_name;
  std::string service;  // the extender's; empty: gpulet explain's
};

// Prints the report and writes the archive. Leaves the process: 0 when all checks pass or warn, or cannot
// tell; 1 when one fails, or the archive cannot be written; 2 for options that are wrong.
[[noreturn]] void doctor(const DoctorOptions& options);

}  // namespace gpulet::cli
