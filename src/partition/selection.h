// Which rule of gpulet.partition each GPU follows. Pure.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition {

// Whether a node with these labels has it: the key, and its value where one is given.
bool has_label(const config::NodeLabel& wanted, const std::map<std::string, std::string>& labels);

// A DGX Station's display adapter is no GPU for work. Source: go-nvlib, pkg/nvlib/device/api.go.
bool display_adapter(const inventory::Gpu& gpu);

struct Selection {
  // Parallel to snapshot.gpus: the index of its rule; nullopt where none selects it.
  std::vector<std::optional<std::size_t>> rule;
  std::vector<Note> notes;  // what rules name and the node does not have
};

// The first rule that selects a GPU has it. A count counts the GPUs that no earlier rule took and that the
// rule's other conditions let through, by index. Display adapters and GPUs without a UUID are nobody's. A GPU
// whose model was never learned matches no model pattern but "*".
Selection select_rules(const inventory::Snapshot& snapshot, const config::Config& config,
                       const std::map<std::string, std::string>& labels);

}  // namespace gpulet::partition
