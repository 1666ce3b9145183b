// Which resource a whole GPU or a MIG device belongs to, by its model or profile. Pure.
// Source: facts of k8s-device-plugin v0.20.0, api/config/v1/resources.go and internal/rm/rm.go.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "config/config.h"
#include "inventory/snapshot.h"

namespace gpulet::partition {

// Whether `text` is what `pattern` describes: '*' stands for any text, all else for itself, from end to end.
// Cost: O(pattern × text).
bool matches(std::string_view pattern, std::string_view text);

// The first pattern that matches the model names it; nvidia.com/gpu where none does.
ResourceName gpu_resource(const inventory::Gpu& gpu, const config::Config& config);

// The first pattern that matches the profile names it. Else: single → nvidia.com/gpu; mixed → nvidia.com/mig-<profile>
// with '+' as '.', for a device that has its GPU instance alone; nullopt for a share of a GPU instance ("1c.2g.20gb").
// Precondition: the strategy is not none.
std::optional<ResourceName> mig_resource(const inventory::MigDevice& device, const config::Config& config,
                                         config::MigStrategy strategy);

}  // namespace gpulet::partition
