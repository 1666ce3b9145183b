// What MIG shall be on each GPU: by a rule of gpulet.partition, else by the node's label. And what a layout's
// name stands for.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "agent/mig_manager.h"
#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::agent {

// The label of mig-parted's manager, and where the outcome is told.
inline constexpr const char* kMigConfigLabel = "nvidia.com/mig.config";
inline constexpr const char* kMigStateLabel = "nvidia.com/mig.config.state";

// For every readable GPU with MIG that a rule selects, and, where the label is there, every other one. Empty
// where gpulet.mig.manage is false. Pure.
std::vector<MigWish> mig_wishes(const inventory::Snapshot& snapshot, const config::Config& config,
                                const std::map<std::string, std::string>& labels);

// By gpulet.mig.configFile where that is set, else as the hardware says (mig/derive.h). Reads the file anew.
// Errors: those of the file; kNotFound, no such layout, with the nearest names.
Result<std::vector<std::optional<mig::Layout>>> mig_layouts(const config::Config& config,
                                                            const std::string& name,
                                                            std::span<const mig::State> gpus);

}  // namespace gpulet::agent
