// What a client may do with the driver: by the capabilities of the calling thread, and by the device nodes
// that its process could open when it initialised NVML. Strict as the kernel module:
//
//   administrator     CAP_SYS_ADMIN in effect, asked in each call: set a mode or a limit, reset
//   configures MIG    administrator, or access to /dev/nvidia-caps/nvidia-cap1: create, destroy and list GPU
//                     and compute instances
//   monitors MIG      CAP_SYS_ADMIN at initialisation, or access to nvidia-cap2: memory and processes of a
//                     GPU with GPU instances, events of the instances
//   GPU               access to /dev/nvidiaN; without it, the process does not see the GPU
//   MIG device        monitors MIG, or access to the nodes of its GPU and compute instance; likewise
//
// Sources: NVIDIA's MIG user guide, "Device Nodes and Capabilities"; nvml.h, "Requires root user" and
// "privileged user"; the open kernel modules 580: RmIoctl and osIsAdministrator, MIGMonitorSession,
// subdeviceCtrlCmdFbGetInfoV2, subdeviceCtrlCmdGpuGetPids, subdeviceCtrlCmdGpuGetPartitions and
// ...SetPartitions, _gpuFilterSubDeviceEventInfo, gisubscriptionConstruct; nvidia-docker #1473. Without GPU
// instances, the kernel module restricts no getter (IS_MIG_IN_USE), which a real H100 confirms:
// tests/gpu/fixtures.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/driver/call.h"
#include "sim/state/mig.h"

namespace gpulet::sim {

// What the process could open at initialisation.
struct NodeAccess {
  nvmlReturn_t control = NVML_SUCCESS;  // of nvmlInit, by /dev/nvidiactl
  std::uint64_t hidden_gpus = 0;        // a bit for each GPU index without access to its node
  bool monitor = false;
  bool config = false;
  bool has_nodes = false;  // the machine has device nodes
  // Of a machine without device nodes (`up --no-device-nodes`) that this unprivileged user has made: with
  // respect to it, he is the administrator.
  bool is_owner = false;
  bool uvm = true;  // /dev/nvidia-uvm, without which CUDA does not initialise
};

// Opens the nodes in the process's own /dev where the driver root is its root, as in a container; else in the
// driver root's dev/, whose nodes a device cgroup restricts in the same way. Checks no node of a machine
// without device nodes: there, access to the files of the capabilities in /proc counts. Takes the machine's
// lock. Blocks for a few opens.
NodeAccess open_device_nodes(const StateFile& state);

// nvmlInit's result for an errno of opening /dev/nvidiactl; 0 is success. A simulated node has no driver
// behind it: ENXIO means access. Seen: EPERM of a device cgroup is "Unknown Error" (nvidia-docker #966),
// EACCES "Insufficient Permissions" (nvidia-container-toolkit #210), a missing node "couldn't communicate
// with the NVIDIA driver" (lxd #3642).
nvmlReturn_t control_node_result(int error_number);

bool is_administrator();
bool may_configure_mig();
bool may_monitor_mig();

// Whether the GPU has GPU instances: only then its getters are restricted.
bool is_mig_in_use(const Gpu& gpu);

// The `n`th of the GPU's MIG devices that this process may use. May open device nodes.
std::optional<MigDevice> visible_mig_device(const Gpu& gpu, std::uint32_t n);

// The result of a getter of all of a GPU (not of a MIG device), respectively of its GPU instances.
inline nvmlReturn_t check_mig_monitor(const GpuCall& call) {
  const bool allowed = call.is_mig() || !is_mig_in_use(call.gpu_state()) || may_monitor_mig();
  return allowed ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}
inline nvmlReturn_t check_mig_config(const GpuCall& call) {
  return !is_mig_in_use(call.gpu_state()) || may_configure_mig() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

// A call that changes the GPU.
class GpuEdit : public BasicGpuCall<Machine> {
 public:
  using BasicGpuCall::BasicGpuCall;

  template <class... Pointers>
  nvmlReturn_t entry_error(const Pointers*... results) const {
    if (const auto error = BasicGpuCall::entry_error(results...)) return error;
    return is_administrator() ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
  }
};

}  // namespace gpulet::sim
