// Readers of `resources` (names by pattern) and `sharing` (time-slicing and MPS), with NVIDIA's form and
// rules. NVIDIA's plugin parses and ignores `resources`, `rename` and `devices`; gpulet applies them.
// Mistakes go into `problems`; the result is then invalid. Source: k8s-device-plugin v0.20.0,
// api/config/v1/{resources,replicas,sharing}.go.
#pragma once

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

}  // namespace gpulet::config
