// A driver root on disk: what a node with NVIDIA's driver has below "/", for a simulated machine, in a
// folder. `up` makes it with the machine's state, `down` removes all that was made, `refresh` brings what
// follows the state in line with it.
#pragma once

#include <string>

#include "sim/state/state.h"

namespace gpulet::sim {

struct RootOptions {
  std::string root;          // made when it is not there
  bool device_nodes = true;  // false: no /dev at all, for who may not make nodes
  // Files that are copied in. Empty: looked for beside the running program, as installed_files says.
  std::string nvml_library;
  std::string nvidia_smi;
  std::string mps_control{};
};

// Lays the machine out and starts it: its state is the last thing made, so that a client never sees half a
// machine. On an error nothing is left behind. Errors: kFailedPrecondition when the root is up already or
// holds one of the files; kPermissionDenied when device nodes are refused; kNotFound when a file to copy is
// not there.
Result<StateFile> up(const Machine& machine, RootOptions options);

// Unloads the driver, so that who has it mapped sees it go, ends the programs that run from the root (MPS
// daemons), and removes all that up made. Errors: kNotFound when nothing is up there.
Status down(const std::string& root);

// The running machine's state. Errors: as StateFile::open, with what to do.
Result<StateFile> open_state(const std::string& root);

// Brings /proc, the driver's files and the capabilities in line with the state: after a replaced GPU, another
// driver version, changed MIG instances.
Status refresh(const std::string& root, const Machine& machine);

// The simulated libnvidia-ml.so.1, nvidia-smi and nvidia-cuda-mps-control: in ../lib/gpulet/sim of the
// running program's folder, or in its folder itself (a build tree). Empty where there is none.
struct InstalledFiles {
  std::string nvml_library;
  std::string nvidia_smi;
  std::string mps_control{};
};
InstalledFiles installed_files();

}  // namespace gpulet::sim
