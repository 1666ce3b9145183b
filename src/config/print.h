// The effective configuration as text, with where each value came from: what `gpulet config print` prints.
#pragma once

#include <string>

#include "config/load.h"

namespace gpulet::config {

// The `version: v1` form, each value followed by "# from <origin>". Reading it back gives the same Config.
std::string print_yaml(const Loaded& loaded);

// {"config": {the v1 form}, "origins": {"flags.migStrategy": "env MIG_STRATEGY", …}}, indented by two.
std::string print_json(const Loaded& loaded);

}  // namespace gpulet::config
