// The processes that use GPUs of the node (agent/driver/gpu_reset.h), from the loop.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "agent/node/node.h"
#include "base/types.h"
#include "inventory/snapshot.h"
#include "mig/device_holders.h"
#include "mig/hardware.h"

namespace gpulet::agent {

using GpuProcesses = std::map<DeviceUuid, std::vector<mig::DeviceHolder>>;
enum class ProcessKind {
  kAll,           // read_gpu_holders()
  kWithContexts,  // read_gpu_contexts()
};
// `done` comes from the loop. Errors: kNotFound where the driver no longer lists one of them; those of
// read_gpu_holders() and of a driver that does not answer. Precondition: there is an agent.
void read_gpu_processes(Node& node, ProcessKind kind, std::vector<DeviceUuid> gpus,
                        std::function<void(Result<GpuProcesses>)> done);

// The Pods that hold the GPU or a part of it, each once. Pure.
std::vector<std::string> pods_on(const inventory::Gpu& gpu, const mig::PodsByDevice& pods);

}  // namespace gpulet::agent
