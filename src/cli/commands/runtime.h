// `gpulet runtime configure` and `gpulet runtime check`: enable and check CDI in container engines.
#pragma once

#include <string>

namespace gpulet::cli {

struct RuntimeConfigureOptions {
  std::string runtime;          // containerd, crio, docker or podman
  bool dry_run = false;         // print the changes and make none
  bool remove = false;          // undo earlier changes
  bool restart = false;         // restart the engine if needed
  std::string config{};         // its main config file, on the host; empty: the usual one
  std::string drop_in{};        // gpulet's config file, on the host; empty: the usual place
  std::string host_root = "/";  // mount point of the host's /
  std::string output = "text";  // text or json
};

struct RuntimeCheckOptions {
  std::string host_root = "/";
  std::string output = "text";
};

// Exit code: 0 if the engine is configured now (with dry_run: would be); 1 if it is not, or a requested
// restart failed; 2 for an invalid argument or a file that the engine would refuse. One line of standard
// error has the reason.
int run_runtime_configure(const RuntimeConfigureOptions& options);

// Exit code: 0 if every engine found is ready, 1 if one is not or none is found.
int run_runtime_check(const RuntimeCheckOptions& options);

}  // namespace gpulet::cli
