// `gpulet runtime configure` and `gpulet runtime check`: container engines and CDI.
#pragma once

#include <string>

namespace gpulet::cli {

struct RuntimeConfigureOptions {
  std::string runtime;          // containerd, crio, docker or podman
  bool dry_run = false;         // say what would change, and change nothing
  bool remove = false;          // take back what was changed
  bool restart = false;         // restart the engine when that is needed
  std::string config{};         // its main file, on the host; empty: the usual one
  std::string drop_in{};        // our file, on the host; empty: the usual place
  std::string host_root = "/";  // where the host's root is seen
  std::string output = "text";  // text or json
};

struct RuntimeCheckOptions {
  std::string host_root = "/";
  std::string output = "text";
};

// Exit code: 0 when the engine is as wanted now (or, with dry_run, would be); 1 when it is not, or a restart
// was asked for and failed; 2 for a wrong argument or a file that the engine would refuse. One line on
// standard error says why.
int runtime_configure(const RuntimeConfigureOptions& options);

// Exit code: 0 when every engine found is fit, 1 when one is not or there is none.
int runtime_check(const RuntimeCheckOptions& options);

}  // namespace gpulet::cli
