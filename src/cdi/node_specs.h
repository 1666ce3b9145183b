// The documents that a node's device plugin names to the kubelet: one of each class that there is something
// of, of the kinds k8s.device-plugin.nvidia.com/{gpu,gds,mofed,gdrcopy,imex-channel}.
#pragma once

#include <string>
#include <vector>

#include "cdi/generate.h"

namespace gpulet::cdi {

struct NodeSpecOptions {
  std::string vendor = "k8s.device-plugin.nvidia.com";
  NameStrategy names = NameStrategy::kUuid;  // --device-id-strategy
  bool gds = false, mofed = false, gdrcopy = false;
  bool imex = true;  // the channels that there are
  HookOptions hooks = {};
  DriverFileOptions driver = {};
  bool additional_gids = false;
};

struct NodeSpecs {
  std::vector<Spec> specs;  // gpu first; without the classes of which the node has nothing
  std::vector<std::string> warnings;
  // Why there is no document of GPUs: the driver's files are not there, say, or none of it can be offered.
  std::optional<Error> no_gpus;
};

// Looks at the roots: some 250 system calls. Errors: none of its own; see no_gpus.
NodeSpecs node_specs(const Roots& roots, const inventory::Snapshot& snapshot, const NodeSpecOptions& options);

// What --cdi-feature-flags names (NVIDIA's and `additional-gids-for-device-nodes`), applied. Errors:
// kInvalidArgument for one that nobody knows.
Status apply_feature_flag(const std::string& flag, DriverFileOptions& driver, bool& additional_gids);

}  // namespace gpulet::cdi
