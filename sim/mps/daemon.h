// The simulated MPS control daemon as a process: its pipe directory, its log, its servers, and what a client
// or the control program says to it. The machine is the one whose driver root the program lies in.
#pragma once

#include <functional>
#include <string>

#include "sim/mps/control.h"

namespace gpulet::sim::mps {

struct DaemonOptions {
  std::string pipe_directory = "/tmp/nvidia-mps";     // CUDA_MPS_PIPE_DIRECTORY
  std::string log_directory = "/var/log/nvidia-mps";  // CUDA_MPS_LOG_DIRECTORY
  std::string visible_devices;                        // CUDA_VISIBLE_DEVICES; empty: all
  std::string active_thread_percentage;               // CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; empty: 100
  std::string state;                                  // the simulated machine's state file
  bool log_to_output = false;                         // -f: the log goes to standard output too
};

// The machine's devices that `options.visible_devices` lets through, in its order, up to the first that does
// not exist: GPUs by index or UUID (or its beginning), MIG devices by UUID. A GPU in MIG mode is none.
// Errors: kUnavailable without a driver or without any device.
Result<std::vector<VisibleDevice>> visible_devices(const DaemonOptions& options);

// Serves until `quit`. `ready` is called once it does. Errors: those of visible_devices; kFailedPrecondition,
// "An instance of this daemon is already running"; and what its files and socket refuse.
Status serve(const DaemonOptions& options, const std::function<void()>& ready);

// Names inside the pipe directory.
inline constexpr std::string_view kSocketName = "control";
inline constexpr std::string_view kLockName = "control_lock";
inline constexpr std::string_view kPidName = "nvidia-cuda-mps-control.pid";
inline constexpr std::string_view kSlowName = "simulated_delay_ms";  // written by gpulet-sim mps slow

}  // namespace gpulet::sim::mps
