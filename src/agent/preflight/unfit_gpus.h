// GPUs that a preflight cannot check: those in MIG mode, and those that are to be. CUDA on the whole GPU
// works only without MIG. Source: CUDA and MIG, NVIDIA MIG user guide. Pure.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "agent/mig/mig_ports.h"
#include "base/result.h"
#include "inventory/snapshot.h"
#include "mig/layout.h"

namespace gpulet::agent {

using UnfitGpus = std::map<DeviceUuid, std::string>;  // with the reason
// As mig_layouts() (agent/mig/mig_manager.h).
using LayoutsByName = std::function<Result<std::vector<std::optional<mig::Layout>>>(
    const std::string& name, std::span<const mig::State> gpus)>;

// A target without MIG (a rule for shares or whole GPUs, or a layout that disables it) leaves its GPU fit. A
// layout that cannot be read, or that only the hardware's profiles would tell, counts as MIG.
UnfitGpus find_unfit(const inventory::Snapshot& snapshot, const std::vector<MigTarget>& targets,
                     const LayoutsByName& layouts);

}  // namespace gpulet::agent
