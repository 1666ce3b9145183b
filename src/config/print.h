// The effective configuration with the origin of each value, for `gpulet config print`.
#pragma once

#include <string>

#include "config/load.h"

namespace gpulet::config {

// YAML in the `version: v1` form, each value followed by "# from <origin>". Loading it yields the same
// Config.
std::string print_yaml(const LoadedConfig& loaded);

// {"config": {the v1 form}, "origins": {"flags.migStrategy": "env MIG_STRATEGY", …}}, indented by two.
std::string print_json(const LoadedConfig& loaded);

}  // namespace gpulet::config
