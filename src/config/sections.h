// Readers of `resources` (names by pattern) and `sharing` (time-slicing and MPS), with NVIDIA's form and
// rules, and the check of `gpulet.partition` against them. NVIDIA's plugin parses and ignores `resources`,
// `rename` and `devices`; gpulet applies them. Mistakes go into `problems`; the result is then invalid.
// Source: k8s-device-plugin v0.20.0, api/config/v1/{resources,replicas,sharing}.go.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "config/field_reader.h"
#include "config/yaml.h"

namespace gpulet::config {

struct ResourceNames {
  std::vector<ResourcePattern> gpus, mig;
};
ResourceNames read_resources(const yaml::Node& node, Problems& problems);

Sharing read_sharing(const yaml::Node& node, Problems& problems);

// Checks the rules of `gpulet.partition` against each other and against `sharing`. Adds to `problems`: a GPU
// in two lists, a resource that is shared in two ways. An error stands at the later rule's place and names
// the earlier one's. Warns of rules that can never select a GPU. `sharing_origin`:
// LoadedConfig::sharing_origin. Precondition: config.gpu_resources ends with its default.
void check_partition(const Config& config, const std::string& sharing_origin, Problems& problems);

}  // namespace gpulet::config
