// Applies gpulet.partition: selects the rule of each GPU and plans its resources and its MIG state. Pure.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "inventory/snapshot.h"
#include "partition/resources.h"

namespace gpulet::partition {

// Whether `labels` have the key, with the value if one is required.
bool has_label(const config::NodeLabel& wanted, const std::map<std::string, std::string>& labels);

// Whether a list names the GPU; true for a selection without a list.
bool is_listed(const config::GpuSelection& selection, const inventory::Gpu& gpu);
// By the driver's name, or as the label nvidia.com/gpu.product has it.
bool is_model(const std::string& pattern, const std::string& model);

// A DGX Station's display adapter is not for compute. Source: go-nvlib, pkg/nvlib/device/api.go.
bool is_display_adapter(const inventory::Gpu& gpu);

struct Selection {
  // Parallel to snapshot.gpus: the index of the GPU's rule; nullopt: none.
  std::vector<std::optional<std::size_t>> rule;
  // Parallel too: why a rule withholds the GPU from Kubernetes ("is excluded by the rule at x.yaml:3:5");
  // empty if none does.
  std::vector<std::string> excluded;
  // Parallel too: which side is to offer the GPU: its rule's, else as gpulet.dra.enabled says.
  std::vector<config::OfferSide> side;
  // Parallel too: the profiles of its rule's dynamicMig; empty for every other GPU.
  std::vector<std::vector<std::string>> dynamic_profiles;
  // Parallel too: how claims share the GPU, by its rule; nullopt: one claim has it.
  std::vector<std::optional<config::ConsumableShares>> shares;
  // GPUs that rules name and the node does not have, and GPUs that a rule excludes by name too late.
  std::vector<Note> notes;
  std::vector<Note> remarks;  // rules that exclude no GPU of the node
};

// The first rule that selects a GPU applies. A count takes GPUs by index that no earlier rule took and the
// other conditions admit. Display adapters and GPUs without a UUID have no rule. A GPU of unknown model only
// matches the pattern "*"; whether a display is attached is a condition only for GPUs of which it is known.
Selection select_rules(const inventory::Snapshot& snapshot, const config::Config& config,
                       const std::map<std::string, std::string>& labels);

// Sets Gpu::excluded of every GPU to Selection::excluded.
void mark_excluded_gpus(inventory::Snapshot& snapshot, const config::Config& config,
                        const std::map<std::string, std::string>& labels);

// Whether a rule depends on Gpu::display, which changes without a notice by the driver.
bool selects_by_display(const config::Config& config);

//

// The resources of one GPU by name, each with only its devices. Empty, with a Note, if the GPU does not match
// its rule: MIG on or off, another layout, too many MPS shares. `migs`: UUIDs of MIG devices already offered;
// adds those offered here.
std::vector<Resource> plan_by_rule(const inventory::Snapshot& snapshot, std::size_t gpu,
                                   const config::PartitionRule& rule, const config::Config& config,
                                   std::set<DeviceUuid>& migs, std::vector<Note>& notes);

// Adds a GPU's resource to `resources`: as a new one, or to the resource with the same name and mode; else
// adds a Note that it is not offered.
void add_resource(std::map<ResourceName, Resource>& resources, Resource more,
                  const inventory::Snapshot& snapshot, const config::PartitionRule& rule,
                  std::vector<Note>& notes);

// The MIG state that a rule requires of a GPU; mig/ applies it.

struct DesiredMig {
  unsigned index = 0;  // the GPU's NVML index
  DeviceUuid uuid;
  bool enabled = false;  // false: whole, time-sliced or with MPS
  // If enabled, one of the two: a layout name, or counts by profile.
  std::string layout;
  std::map<std::string, unsigned> devices;
  std::string position;  // of the rule: "file:line:column"
  bool on_demand = false;
  friend bool operator==(const DesiredMig&, const DesiredMig&) = default;
};

// By index: every MIG-capable GPU with a UUID and a rule that offers it, other than by dynamicMig.
std::vector<DesiredMig> desired_mig(const inventory::Snapshot& snapshot, const config::Config& config,
                                    const std::map<std::string, std::string>& labels);

}  // namespace gpulet::partition
