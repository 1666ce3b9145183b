// Resets GPUs by the driver's own nvidia-smi: NVML has no reset. And who uses a GPU that is to be reset. Both
// block: for the driver's thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/loop.h"
#include "base/result.h"
#include "mig/device_holders.h"
#include "nvml/session.h"

namespace gpulet::agent {

inline constexpr std::string_view kResetProgram = "nvidia-smi";

// `nvidia-smi --gpu-reset -i UUID,UUID` of the driver root. It is refused while any client has one of the
// GPUs open, this process too. A program that does not end in time is killed. Errors: kFailedPrecondition
// with what it printed; kDeadlineExceeded after `limit`; kNotFound, kPermissionDenied, kIo: it did not start.
// Source: nvidia-smi(1), --gpu-reset.
Status reset_gpus(const std::string& driver_root, const std::vector<DeviceUuid>& gpus, Duration limit);

// "GPU 00000000:1B:00.0: In use by another client": the line of nvidia-smi's output that says why. Pure.
std::string reset_failure(const std::string& output);

// The processes with a compute, MPS or graphics context on the GPU with that NVML index, as the driver lists
// them. Errors: kNotFound where another GPU has the index; kUnsupported for a driver that lists no processes;
// kResetRequired; the driver's others.
Result<std::vector<mig::DeviceHolder>> read_gpu_contexts(const nvml::Session& session, unsigned index,
                                                         const DeviceUuid& gpu,
                                                         const std::string& proc_root = "/proc");

// The same, and those that have its device node open without a context (mig/device_holders.h), as monitors
// do; by pid. A driver that lists no processes, and a GPU that answers only that it needs a reset, count as
// without contexts: nvidia-smi refuses the reset itself. Errors: the others of read_gpu_contexts().
Result<std::vector<mig::DeviceHolder>> read_gpu_holders(const nvml::Session& session, unsigned index,
                                                        const DeviceUuid& gpu, unsigned minor,
                                                        const std::string& proc_root = "/proc");

}  // namespace gpulet::agent
