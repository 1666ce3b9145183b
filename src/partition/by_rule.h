// What one GPU is offered as by its rule of gpulet.partition. Pure.
#pragma once

#include <set>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition {

// The GPU's resources, by name, each with this GPU's devices alone. Nothing, with a Note, where the GPU is
// not as the rule wants it: MIG on or off, cut in another way, too many MPS shares for it. `migs`: UUIDs of
// MIG devices that are offered already; what is offered here joins them.
std::vector<Resource> by_rule(const inventory::Snapshot& snapshot, std::size_t gpu,
                              const config::PartitionRule& rule, const config::Config& config,
                              std::set<DeviceUuid>& migs, std::vector<Note>& notes);

// Puts a rule's resource of one GPU with those there are: as a new one, or its devices to the resource of
// this name when that is cut and shared in the same way; else a Note that it is not offered.
void add_resource(std::map<ResourceName, Resource>& resources, Resource more,
                  const inventory::Snapshot& snapshot, const config::PartitionRule& rule,
                  std::vector<Note>& notes);

}  // namespace gpulet::partition
