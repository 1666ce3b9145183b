// A driver root on disk: the files of a node with NVIDIA's driver, for a simulated machine, in a directory.
// `gpulet-sim up` creates it with the machine's state, `down` removes it, and changes of the state refresh
// it.
#pragma once

#include <string>

#include "sim/state/state.h"

namespace gpulet::sim {

struct RootOptions {
  std::string root;          // created if missing
  bool device_nodes = true;  // false: no /dev, without permission to create nodes
  // Files to copy. Empty: those of installed_files().
  std::string nvml_library;
  std::string nvidia_smi;
  std::string mps_control{};
  bool uvm = true;  // false: the module nvidia-uvm is not loaded; see load_uvm
  std::string cuda_library{};
};

// Creates the files, then the state, so that a client never sees half a machine. Leaves nothing behind on an
// error. Errors: kFailedPrecondition if the root is up or contains one of the files; kPermissionDenied if
// device nodes are refused; kNotFound if a file to copy is missing.
Result<StateFile> create_driver_root(const Machine& machine, RootOptions options);

// Unloads the driver for its clients, kills the programs of the root (MPS daemons), and removes all created
// files. Errors: kNotFound if no machine is up.
Status remove_driver_root(const std::string& root);

// Opens the running machine's state. Errors: those of StateFile::open_state, with advice.
Result<StateFile> open_driver_state(const std::string& root);

// Updates /proc, the driver's files and the capabilities after a replaced GPU, another driver version or
// changed MIG instances.
Status refresh_driver_root(const std::string& root, const Machine& machine);

// Device nodes of the machine, for a node on which they come late, go or never come. `name`: below /dev, such
// as "nvidia0" or "nvidia-caps/nvidia-cap1"; not those of MIG devices, which follow the instances. Errors:
// kNotFound if the machine has no such node, or it is gone already; kFailedPrecondition if it is there
// already; kPermissionDenied.
Status add_device_node(const std::string& root, const std::string& name);
Status remove_device_node(const std::string& root, const std::string& name);
// Loads or unloads the module nvidia-uvm: its line of /proc/devices, its nodes. Without nodes it is as after
// `modprobe nvidia-uvm`, with them as after `nvidia-modprobe -u`. Errors: those of add_device_node; none if
// it is so already.
Status load_uvm(const std::string& root, bool with_nodes);
Status unload_uvm(const std::string& root);

// Returns the simulated libnvidia-ml.so.1, libcuda.so.1, nvidia-smi and nvidia-cuda-mps-control: in
// ../lib/gpulet/sim beside the running program's directory, or in that directory (a build tree). Empty if
// missing.
struct InstalledFiles {
  std::string nvml_library;
  std::string nvidia_smi;
  std::string mps_control{};
  std::string cuda_library{};
};
InstalledFiles installed_files();

// Kills every process whose program is below `root`, such as MPS control daemons, which outlive their
// starter.
void kill_programs(const std::string& root);

}  // namespace gpulet::sim
