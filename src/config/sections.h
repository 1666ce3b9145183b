// The two sections of the file that are lists of things rather than settings: `resources` (names by pattern)
// and `sharing` (time-slicing and MPS). NVIDIA's form and rules; its plugin parses and then ignores
// `resources`, `rename` and `devices`, which work here. Problems go into `problems`; what is returned then is
// not to be used. Source: k8s-device-plugin v0.20.0, api/config/v1/{resources,replicas,sharing}.go.
#pragma once

#include <vector>

#include "config/config.h"
#include "config/fields.h"
#include "config/problems.h"
#include "config/yaml.h"

namespace gpulet::config {

struct ResourceNames {
  std::vector<ResourcePattern> gpus, mig;
};
ResourceNames read_resources(const yaml::Node& node, Problems& problems);

Sharing read_sharing(const yaml::Node& node, Problems& problems);

}  // namespace gpulet::config
